"""Versions of the sync config in a Postgres store, and the row sides that are complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg

from headwater.failpoints import passing
from headwater.storage.contract.store import Lease, StoreError
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.postgres.control import lease as leases
from headwater.storage.postgres.copying import columns

_COLUMNS = "id, yaml, state, origin, created_at, activated_at, stopped_at, note"

_NOW = "extract(epoch from clock_timestamp())::double precision"


def load(connection: psycopg.Connection) -> list[ConfigVersion]:
    """All versions, oldest first."""
    return [_version(row) for row in connection.execute(f"select {_COLUMNS} from versions order by id")]


def _version(row: Sequence[object]) -> ConfigVersion:
    number, yaml, state, origin, created, activated, stopped, note = map(str, row)
    times = float(created), float(activated), float(stopped)
    return ConfigVersion(int(number), yaml, VersionState(state), Origin(origin), *times, note)


def deploy(connection: psycopg.Connection, yaml: str, origin: Origin) -> ConfigVersion:
    """See the contract. The inbox is locked first, so that of two who deploy at once one comes after the other."""
    with connection.transaction():
        connection.execute("update inbox set number = number + 1")
        newest = connection.execute(
            f"select {_COLUMNS} from versions where state in ('processing', 'active')"
            " order by state = 'processing' desc limit 1"
        ).fetchone()
        if newest is not None and newest[1] == yaml:
            return _version(newest)
        connection.execute(
            f"update versions set state = 'stopped', stopped_at = {_NOW}, note = 'another version was deployed'"
            " where state = 'processing'"
        )
        version = connection.execute(
            "insert into versions (yaml, state, origin, created_at)"
            f" values (%s, 'processing', %s, {_NOW}) returning {_COLUMNS}",
            [yaml, origin.value],
        ).fetchall()[0]
        connection.execute("select pg_notify(current_schema(), '')")
        passing("deploy.before_commit")
    return _version(version)


def set_active(connection: psycopg.Connection, version: int) -> None:
    """Within a transaction that holds the store's lock: serve `version`, stop the one before."""
    if not connection.execute("select 1 from versions where id = %s", [version]).fetchall():
        raise StoreError("the version is not there", f"version {version}", "see `headwater rules versions`")
    connection.execute(
        f"update versions set state = 'stopped', stopped_at = {_NOW} where state = 'active' and id <> %s", [version]
    )
    connection.execute(
        f"update versions set state = 'active', activated_at = {_NOW}, stopped_at = 0, note = '' where id = %s",
        [version],
    )
    connection.execute("update state set config = %s", [version])


def add_sides(connection: psycopg.Connection, sides: Mapping[str, str]) -> None:
    """Within a transaction: these row sides are complete."""
    connection.execute(
        "insert into sides (name, digest, state) select name, digest, 'complete' from unnest(%s::text[], %s::text[])"
        " as s (name, digest) on conflict (name) do update set digest = excluded.digest, state = excluded.state",
        columns(list(sides.items()), 2),
    )


def activate(connection: psycopg.Connection, lease: Lease, version: int, sides: Mapping[str, str]) -> None:
    """See the contract."""
    with leases.holding(connection, lease):
        op_id = connection.execute(
            "update state set next_op = next_op + 1, checkpoint = next_op returning checkpoint"
        ).fetchall()[0][0]
        set_active(connection, version)
        add_sides(connection, sides)
        connection.execute(
            "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
            " select %s, tag, lsn, 0, '[]', '[]' from sources where tag = %s",
            [op_id, lease.name],
        )
        connection.execute("select pg_notify(current_schema(), '')")
        passing("activate.before_commit")
    passing("activate.after_commit")


def mark(connection: psycopg.Connection, lease: Lease, version: int, state: VersionState, note: str) -> None:
    """See the contract."""
    with leases.holding(connection, lease):
        connection.execute(
            f"update versions set state = %s, stopped_at = case %s when 'processing' then 0 else {_NOW} end, note = %s"
            " where id = %s and state <> 'active'",
            [state.value, state.value, note, version],
        )


def complete_sides(connection: psycopg.Connection) -> dict[str, str]:
    """Name to digest."""
    return dict(connection.execute("select name, digest from sides where state = 'complete' order by name").fetchall())


def begin_sides(connection: psycopg.Connection, lease: Lease, sides: Mapping[str, str]) -> None:
    """See the contract."""
    with leases.holding(connection, lease):
        connection.execute(
            "insert into sides (name, digest, state) select name, digest, 'building'"
            " from unnest(%s::text[], %s::text[]) as s (name, digest) on conflict (name) do nothing",
            columns(list(sides.items()), 2),
        )


def unfinished_sides(connection: psycopg.Connection) -> list[str]:
    """See the contract."""
    return [row[0] for row in connection.execute("select name from sides where state <> 'complete' order by name")]
