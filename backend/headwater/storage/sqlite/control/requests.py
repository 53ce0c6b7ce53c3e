"""Requests to the replicator in the embedded store."""

from __future__ import annotations

import time
from collections.abc import Sequence

import apsw

from headwater.storage.contract.requests import Request, RequestState
from headwater.storage.contract.store import Lease
from headwater.storage.shared.values import whole
from headwater.storage.sqlite.connection import immediate
from headwater.storage.sqlite.control import lease as leases

_COLUMNS = "id, kind, source, payload, state, progress, result, created_at"
_KEPT_SECONDS = 86_400.0


def _request(row: Sequence[apsw.SQLiteValue]) -> Request:
    number, kind, source, payload, state, progress, result, created = map(str, row)
    return Request(int(number), kind, source, payload, RequestState(state), progress, result, float(created))


def submit(connection: apsw.Connection, kind: str, source: str, payload: str) -> int:
    """See the contract."""
    now = time.time()
    with immediate(connection):
        connection.execute(
            "delete from requests where state in ('done', 'failed') and changed_at < ?", (now - _KEPT_SECONDS,)
        )
        sql = (
            "insert into requests (kind, source, payload, state, created_at, changed_at)"
            " values (?, ?, ?, 'waiting', ?, ?) returning id"
        )
        number = connection.execute(sql, (kind, source, payload, now, now)).fetchall()[0][0]
        connection.execute("update state set inbox = inbox + 1")
    return whole(number)


def find(connection: apsw.Connection, request: int) -> Request | None:
    """See the contract."""
    row = connection.execute(f"select {_COLUMNS} from requests where id = ?", (request,)).fetchone()
    return None if row is None else _request(row)


def unfinished(connection: apsw.Connection, source: str) -> list[Request]:
    """Those of a source that are not done."""
    sql = f"select {_COLUMNS} from requests where source = ? and state in ('waiting', 'running') order by id"
    return [_request(row) for row in connection.execute(sql, (source,))]


def update(
    connection: apsw.Connection, lease: Lease, request: int, state: RequestState, progress: str, result: str
) -> None:
    """See the contract."""
    with leases.holding(connection, lease):
        connection.execute(
            "update requests set state = ?, progress = ?, result = ?, changed_at = ? where id = ?",
            (state.value, progress, result, time.time(), request),
        )
