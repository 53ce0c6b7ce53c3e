"""Local transactions that the server refused: what the app is told of them, and the table that keeps them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from headwater_client.database.crud import as_json
from headwater_client.schema.tables import Table
from headwater_client.storage.uploads import CrudEntry

if TYPE_CHECKING:
    from headwater_client.database.database import Database

REFUSALS: Final = Table(
    {
        "at": "text",
        "message": "text",
        "code": "text",
        "op": "text",
        "type": "text",
        "row_id": "text",
        "writes": "text",
    },
    local_only=True,
)
"""Goes into the schema of an app that shows refusals, under the name `upload_refusals`."""

_NAME: Final = "upload_refusals"


@dataclass(frozen=True)
class Refusal:
    """A local transaction that the server refused; its rows are soon again what the server has.

    `message` is for the user, `description` for developers. `code` is the server's, `sqlstate` that of Postgres. `op`,
    `table` and `row_id` are those of the entry of `crud` that was refused, where one was.
    """

    dead_letter: int | None
    message: str
    description: str
    code: str
    sqlstate: str | None
    op: str | None
    table: str | None
    row_id: str | None
    crud: Sequence[CrudEntry]

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of(cls, answer: Mapping[str, Any], crud: Sequence[CrudEntry]) -> Refusal:
        """Read what the server said of the transaction."""
        error, letter = answer["error"], answer.get("dead_letter")
        if not isinstance(error, dict):
            error = {}
        description = str(error.get("description"))
        return cls(
            letter if isinstance(letter, int) else None,
            _text(error.get("message")) or description,
            description,
            str(error.get("code")),
            _text(error.get("sqlstate")),
            _text(error.get("op")),
            _text(error.get("type")),
            _text(error.get("id")),
            crud,
        )


def keep(database: Database, refusals: Iterable[Refusal]) -> None:
    """Keep them in `upload_refusals`, each once, if the schema has the table."""
    if _NAME not in database.synced_names:
        return
    now = datetime.now(timezone.utc).isoformat()
    for each in refusals:
        database.execute(
            f"INSERT OR REPLACE INTO {_NAME} (id, at, message, code, op, type, row_id, writes)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [str(each.dead_letter), now, each.message, each.sqlstate or each.code, each.op, each.table, each.row_id,
             json.dumps([as_json(entry) for entry in each.crud])],
        )  # fmt: skip


def kept(database: Database) -> list[str]:
    """The numbers of the dead letters in `upload_refusals`."""
    if _NAME not in database.synced_names:
        return []
    return [str(row["id"]) for row in database.rows(f"SELECT id FROM {_NAME}")]


def forget(database: Database, letters: Collection[str]) -> None:
    """Remove these from `upload_refusals`."""
    for letter in letters:
        database.execute(f"DELETE FROM {_NAME} WHERE id = ?", [letter])


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
