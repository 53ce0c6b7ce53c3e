"""What the demo's devices may write, as the service config says it, and the policies that decide on each row."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Final

import psycopg

from headwater.source.upload.settings import Conflict, Operation, TableRule

ROLE: Final = "headwater_demo"

_SHARING: Final = frozenset({Operation.INSERT, Operation.DELETE})

TABLES: Final[Mapping[str, TableRule]] = {
    "lists": TableRule("public", "lists", frozenset({"owner_id", "name", "created_at"})),
    # who shares a list is added and removed, not changed
    "list_members": TableRule("public", "list_members", frozenset({"list_id", "user_id", "role"}), _SHARING),
    "todos": TableRule(
        "public",
        "todos",
        frozenset({"list_id", "title", "notes", "done", "created_at", "completed_at"}),
        conflict=Conflict.FUNCTION,
        function=("demo", "keep_titles"),
    ),
}


def upload_section() -> dict[str, object]:
    """The same as the service config has it."""
    return {"role": ROLE, "tables": {name: _section(rule) for name, rule in TABLES.items()}}


def _section(rule: TableRule) -> dict[str, object]:
    section: dict[str, object] = {
        "columns": sorted(rule.columns or ()),
        "operations": [each.value for each in Operation if each in rule.operations],
    }
    if rule.function is not None:
        section["conflict"] = {"function": ".".join(rule.function)}
    return section


def make_policies(conn: psycopg.Connection) -> None:
    """Make the role, the policies, and the record of what wrote lately, or have them as they should be."""
    with conn.transaction():
        conn.execute("set local client_min_messages = warning")  # what was not there to be dropped is no news
        for name in ("upload.sql", "writes.sql"):
            conn.execute(resources.files(__package__).joinpath(name).read_bytes())
