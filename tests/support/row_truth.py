"""What devices show, and what SQL says that they should, as multisets of rows without nulls."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from tests.support.fix_headwater import Deployment

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

Rows = Counter[str]


def device_rows(deployment: Deployment, user: str = "a") -> Rows:
    """The rows of a new device, after everything committed so far."""
    return Counter(_text(table, row) for (table, _), row in deployment.rows(user).items())


def truth(source: SourceDb, table: str, columns: str = "*", condition: str = "true") -> Rows:
    """The same of a table, as rules that select all of it give it."""
    rows = source.fetch(f"select row_to_json(t)::text from (select {columns} from {table} where {condition}) t")
    return Counter(_text(table, json.loads(text)) for (text,) in rows)


def _text(table: str, row: dict[str, object]) -> str:
    shown = {name: _plain(value) for name, value in row.items() if value is not None}
    return json.dumps([table, shown], sort_keys=True, ensure_ascii=False)


def _plain(value: object) -> object:
    """JSON and the numbers in which devices get booleans."""
    if isinstance(value, bool):
        return int(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, list | dict) else value
