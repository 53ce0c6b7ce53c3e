"""Requests to the replicator in a Postgres store."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from headwater.storage.contract.requests import Request, RequestState
from headwater.storage.contract.store import Lease
from headwater.storage.postgres.control import lease as leases

_COLUMNS = "id, kind, source, payload, state, progress, result, created_at"
_NOW = "extract(epoch from clock_timestamp())::double precision"
_KEPT_SECONDS = 86_400


def _request(row: Sequence[object]) -> Request:
    number, kind, source, payload, state, progress, result, created = map(str, row)
    return Request(int(number), kind, source, payload, RequestState(state), progress, result, float(created))


def submit(connection: psycopg.Connection, kind: str, source: str, payload: str) -> int:
    """See the contract."""
    with connection.transaction():
        connection.execute("update inbox set number = number + 1")
        connection.execute(
            f"delete from requests where state in ('done', 'failed') and changed_at < {_NOW} - %s", [_KEPT_SECONDS]
        )
        number = connection.execute(
            "insert into requests (kind, source, payload, state, created_at, changed_at)"
            f" values (%s, %s, %s, 'waiting', {_NOW}, {_NOW}) returning id",
            [kind, source, payload],
        ).fetchall()[0][0]
        connection.execute("select pg_notify(current_schema(), '')")
    return int(number)


def find(connection: psycopg.Connection, request: int) -> Request | None:
    """See the contract."""
    row = connection.execute(f"select {_COLUMNS} from requests where id = %s", [request]).fetchone()
    return None if row is None else _request(row)


def unfinished(connection: psycopg.Connection, source: str) -> list[Request]:
    """Those of a source that are not done."""
    query = f"select {_COLUMNS} from requests where source = %s and state in ('waiting', 'running') order by id"
    return [_request(row) for row in connection.execute(query, [source])]


def update(
    connection: psycopg.Connection, lease: Lease, request: int, state: RequestState, progress: str, result: str
) -> None:
    """See the contract."""
    with leases.holding(connection, lease):
        connection.execute(
            f"update requests set state = %s, progress = %s, result = %s, changed_at = {_NOW} where id = %s",
            [state.value, progress, result, request],
        )
