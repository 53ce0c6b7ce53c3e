"""Versions of the sync config in the embedded store, and the row sides that are complete."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import apsw

from headwater.failpoints import passing
from headwater.storage.contract.store import Lease, StoreError
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.sqlite.connection import immediate
from headwater.storage.sqlite.control import lease as leases

_COLUMNS = "id, yaml, state, origin, created_at, activated_at, stopped_at, note"


def load(connection: apsw.Connection) -> list[ConfigVersion]:
    """All versions, oldest first."""
    return [_version(row) for row in connection.execute(f"select {_COLUMNS} from versions order by id")]


def _version(row: Sequence[apsw.SQLiteValue]) -> ConfigVersion:
    number, yaml, state, origin, created, activated, stopped, note = map(str, row)
    times = float(created), float(activated), float(stopped)
    return ConfigVersion(int(number), yaml, VersionState(state), Origin(origin), *times, note)


def deploy(connection: apsw.Connection, yaml: str, origin: Origin) -> ConfigVersion:
    """See the contract."""
    with immediate(connection):
        sql = f"select {_COLUMNS} from versions where state in ('processing', 'active') order by state desc"
        newest = connection.execute(sql).fetchone()  # 'processing' sorts after 'active'
        if newest is not None and newest[1] == yaml:
            return _version(newest)
        now = time.time()
        connection.execute(
            "update versions set state = 'stopped', stopped_at = ?, note = 'another version was deployed'"
            " where state = 'processing'",
            (now,),
        )
        sql = (
            "insert into versions (yaml, state, origin, created_at) values (?, 'processing', ?, ?)"
            f" returning {_COLUMNS}"
        )
        version = _version(connection.execute(sql, (yaml, origin.value, now)).fetchall()[0])
        connection.execute("update state set inbox = inbox + 1")
        passing("deploy.before_commit")
    return version


def set_active(connection: apsw.Connection, version: int) -> None:
    """Within a write transaction: serve `version`, stop the one before."""
    now = time.time()
    known = connection.execute("select state from versions where id = ?", (version,)).fetchone()
    if known is None:
        raise StoreError("the version is not there", f"version {version}", "see `headwater rules versions`")
    connection.execute(
        "update versions set state = 'stopped', stopped_at = ? where state = 'active' and id <> ?", (now, version)
    )
    connection.execute(
        "update versions set state = 'active', activated_at = ?, stopped_at = 0, note = '' where id = ?", (now, version)
    )
    connection.execute("update state set config = ?", (version,))


def add_sides(connection: apsw.Connection, sides: Mapping[str, str]) -> None:
    """Within a write transaction: these row sides are complete."""
    connection.executemany(
        "insert or replace into sides (name, digest, state) values (?, ?, 'complete')", list(sides.items())
    )


def activate(connection: apsw.Connection, lease: Lease, version: int, sides: Mapping[str, str]) -> None:
    """See the contract."""
    with leases.holding(connection, lease):
        set_active(connection, version)
        add_sides(connection, sides)
        op_id = int(
            str(connection.execute("update state set next_op = next_op + 1 returning next_op").fetchall()[0][0])
        )
        connection.execute("update state set checkpoint = ?", (op_id - 1,))
        connection.execute(
            "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
            " select ?, tag, lsn, 0, '[]', '[]' from sources where tag = ?",
            (op_id - 1, lease.name),
        )
        passing("activate.before_commit")
    passing("activate.after_commit")


def mark(connection: apsw.Connection, lease: Lease, version: int, state: VersionState, note: str) -> None:
    """See the contract."""
    with leases.holding(connection, lease):
        connection.execute(
            "update versions set state = ?, stopped_at = ?, note = ? where id = ? and state <> 'active'",
            (state.value, 0.0 if state is VersionState.PROCESSING else time.time(), note, version),
        )


def complete_sides(connection: apsw.Connection) -> dict[str, str]:
    """Name to digest."""
    rows = connection.execute("select name, digest from sides where state = 'complete' order by name")
    return {str(name): str(digest) for name, digest in rows}


def begin_sides(connection: apsw.Connection, lease: Lease, sides: Mapping[str, str]) -> None:
    """See the contract."""
    with leases.holding(connection, lease):
        connection.executemany(
            "insert or ignore into sides (name, digest, state) values (?, ?, 'building')", list(sides.items())
        )


def unfinished_sides(connection: apsw.Connection) -> list[str]:
    """See the contract."""
    return [str(row[0]) for row in connection.execute("select name from sides where state <> 'complete' order by name")]
