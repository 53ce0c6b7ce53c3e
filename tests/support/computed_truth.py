"""Computed tables of a deployment beside Postgres' own answers to their queries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal

import orjson

from headwater.oplog.lsn import parse_lsn
from headwater.replication.computed import RefreshState, refresh_states
from tests.support.fix_headwater import Deployment
from tests.support.waiting import wait_until

Rows = list[tuple[tuple[str, object], ...]]
"""The rows of a table in an order of their own, each as its columns."""


def config_of_queries(queries: Mapping[str, tuple[str, Sequence[str]]], refresh: str) -> str:
    """A sync config with a computed table for each query, by name, with its key; everybody has all rows."""
    tables = "".join(
        f"  {name}: {{query: {orjson.dumps(query).decode()}, key: [{', '.join(key)}], refresh: {refresh}}}\n"
        for name, (query, key) in queries.items()
    )
    reads = "".join(f"      - SELECT * FROM {name}\n" for name in queries)
    return (
        f"config: {{edition: 3}}\ntables:\n{tables}streams:\n  every:\n    auto_subscribe: true\n    queries:\n{reads}"
    )


def answer(deployment: Deployment, query: str) -> Rows:
    """What Postgres answers now, as devices have it."""
    cursor = deployment.source.connection.execute(query.encode())
    names = [column.name for column in cursor.description or ()]
    return _in_order(dict(zip(names, map(_as_device, row), strict=True)) for row in cursor.fetchall())


def _in_order(rows: Iterable[Mapping[str, object]]) -> Rows:
    shown = (tuple(sorted((name, value) for name, value in row.items() if value is not None)) for row in rows)
    return sorted(shown, key=repr)


def _as_device(value: object) -> object:
    if isinstance(value, bool):
        return int(value)
    return str(value) if isinstance(value, Decimal) else value


def by_table(contents: Mapping[tuple[str, str], Mapping[str, object]]) -> dict[str, Rows]:
    """The rows of a device by table. What is null is not there; columns that are called `id` are left as they are."""
    found: dict[str, list[Mapping[str, object]]] = {}
    for (table, _), row in contents.items():
        found.setdefault(table, []).append(row)
    return {table: _in_order(rows) for table, rows in found.items()}


def on_device(deployment: Deployment) -> dict[str, Rows]:
    """The same of a new device."""
    return by_table(deployment.rows("ann"))


def shown(deployment: Deployment) -> dict[str, dict[str, object]]:
    """The rows on a new device by id, of a config with one table."""
    return {row_id: row for (_, row_id), row in deployment.rows("ann").items()}


def refresh_state(deployment: Deployment, table: str) -> RefreshState:
    """How a computed table stands."""
    deployment.raise_failure()
    with deployment.store() as store:
        return refresh_states(store, deployment.name).get(table, RefreshState(table))


def refresh_all(deployment: Deployment, tables: Collection[str]) -> None:
    """Have all these tables refreshed, and wait until they show what was committed before. `least` has to be 0 s."""
    asked = ", ".join(f"pg_logical_emit_message(true, 'headwater', 'refresh {name}')" for name in tables)
    ((text,),) = deployment.source.fetch("select pg_current_wal_insert_lsn()::text")
    deployment.source.execute(f"select {asked}")
    wanted = parse_lsn(text)

    def all_there() -> bool:
        deployment.raise_failure()
        with deployment.store() as store:
            states = refresh_states(store, deployment.name)
        if failed := [f"{state.name}: {state.what}" for state in states.values() if state.code]:
            raise AssertionError(failed)
        return all(name in states and parse_lsn(states[name].lsn or "0/0") >= wanted for name in tables)

    wait_until(all_there, "all tables to be refreshed", 60)
