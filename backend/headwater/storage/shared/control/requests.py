"""Requests to the replicator."""

from __future__ import annotations

from headwater.storage.contract.requests import Request, RequestState
from headwater.storage.contract.store import Lease
from headwater.storage.shared.control.database import ControlDb, Row
from headwater.storage.shared.values import as_int

_COLUMNS = "id, kind, source, payload, state, progress, result, created_at"
_KEPT_SECONDS = 86_400


def _request(row: Row) -> Request:
    number, kind, source, payload, state, progress, result, created = map(str, row)
    return Request(int(number), kind, source, payload, RequestState(state), progress, result, float(created))


def submit(db: ControlDb, kind: str, source: str, payload: str) -> int:
    """See the contract."""
    with db.submitting():
        db.rows(f"delete from requests where state in ('done', 'failed') and changed_at < {db.now} - ?", _KEPT_SECONDS)
        ((number,),) = db.rows(
            "insert into requests (kind, source, payload, state, created_at, changed_at)"
            f" values (?, ?, ?, 'waiting', {db.now}, {db.now}) returning id",
            kind,
            source,
            payload,
        )
    return as_int(number)


def find(db: ControlDb, request: int) -> Request | None:
    """See the contract."""
    found = db.rows(f"select {_COLUMNS} from requests where id = ?", request)
    return _request(found[0]) if found else None


def unfinished(db: ControlDb, source: str) -> list[Request]:
    """Requests of a source that are not final."""
    query = f"select {_COLUMNS} from requests where source = ? and state in ('waiting', 'running') order by id"
    return [_request(row) for row in db.rows(query, source)]


def update(db: ControlDb, lease: Lease, request: int, state: RequestState, progress: str, result: str) -> None:
    """See the contract."""
    with db.holding(lease):
        db.rows(
            f"update requests set state = ?, progress = ?, result = ?, changed_at = {db.now} where id = ?",
            state.value,
            progress,
            result,
            request,
        )
