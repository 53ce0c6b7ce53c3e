"""Versions of the sync config, and row sides."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.failpoints import failpoint
from headwater.storage.contract.store import Lease, StoreError
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.shared.control.database import ControlDb, Row
from headwater.storage.shared.values import as_int

_COLUMNS = "id, yaml, state, origin, created_at, activated_at, stopped_at, note"
_PUT_SIDE = "insert into sides (name, digest, state) values (?, ?, ?) on conflict (name) do "


def load(db: ControlDb) -> list[ConfigVersion]:
    """All versions, oldest first."""
    return [_version(row) for row in db.rows(f"select {_COLUMNS} from versions order by id")]


def _version(row: Row) -> ConfigVersion:
    number, yaml, state, origin, created, activated, stopped, note = map(str, row)
    times = float(created), float(activated), float(stopped)
    return ConfigVersion(int(number), yaml, VersionState(state), Origin(origin), *times, note)


def deploy(db: ControlDb, yaml: str, origin: Origin) -> ConfigVersion:
    """See the contract."""
    with db.submitting():
        newest = db.rows(
            f"select {_COLUMNS} from versions where state in ('processing', 'active')"
            " order by case state when 'processing' then 0 else 1 end limit 1"
        )
        if newest and newest[0][1] == yaml:
            return _version(newest[0])
        db.rows(
            f"update versions set state = 'stopped', stopped_at = {db.now}, note = 'another version was deployed'"
            " where state = 'processing'"
        )
        (version,) = db.rows(
            "insert into versions (yaml, state, origin, created_at)"
            f" values (?, 'processing', ?, {db.now}) returning {_COLUMNS}",
            yaml,
            origin.value,
        )
        failpoint("deploy.before_commit")
    return _version(version)


def set_active(db: ControlDb, version: int) -> None:
    """Within a write transaction: serve `version` and stop the one before."""
    if not db.rows("select 1 from versions where id = ?", version):
        raise StoreError("there is no such version", f"version {version}", "see `headwater rules versions`")
    db.rows(f"update versions set state = 'stopped', stopped_at = {db.now} where state = 'active' and id <> ?", version)
    db.rows(
        f"update versions set state = 'active', activated_at = {db.now}, stopped_at = 0, note = '' where id = ?",
        version,
    )
    db.rows("update state set config = ?", version)


def add_sides(db: ControlDb, sides: Mapping[str, str]) -> None:
    """Within a write transaction: mark these row sides as complete."""
    for name, digest in sides.items():
        db.rows(f"{_PUT_SIDE} update set digest = excluded.digest, state = excluded.state", name, digest, "complete")


def activate(db: ControlDb, lease: Lease, version: int, sides: Mapping[str, str]) -> None:
    """See the contract."""
    with db.holding(lease):
        ((op_id,),) = db.rows("update state set next_op = next_op + 1, checkpoint = next_op returning checkpoint")
        set_active(db, version)
        add_sides(db, sides)
        db.rows(
            "insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)"
            " select ?, tag, lsn, 0, '[]', '[]' from sources where tag = ?",
            as_int(op_id),
            lease.name,
        )
        db.announce()
        failpoint("activate.before_commit")
    failpoint("activate.after_commit")


def mark(db: ControlDb, lease: Lease, version: int, state: VersionState, note: str) -> None:
    """See the contract."""
    stopped = "0" if state is VersionState.PROCESSING else db.now
    with db.holding(lease):
        db.rows(
            f"update versions set state = ?, stopped_at = {stopped}, note = ? where id = ? and state <> 'active'",
            state.value,
            note,
            version,
        )


def complete_sides(db: ControlDb) -> dict[str, str]:
    """Complete row sides, name to digest."""
    rows = db.rows("select name, digest from sides where state = 'complete' order by name")
    return {str(name): str(digest) for name, digest in rows}


def begin_sides(db: ControlDb, lease: Lease, sides: Mapping[str, str]) -> None:
    """See the contract."""
    with db.holding(lease):
        for name, digest in sides.items():
            db.rows(f"{_PUT_SIDE} nothing", name, digest, "building")


def unfinished_sides(db: ControlDb) -> list[str]:
    """See the contract."""
    return [str(name) for (name,) in db.rows("select name from sides where state <> 'complete' order by name")]
