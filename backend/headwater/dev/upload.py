"""What the demo's devices may write, as the service config says it, and the policies that decide on each row."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Final

import psycopg

from headwater.source.upload.settings import Operation, TableRule

ROLE: Final = "headwater_demo"

_SHARING: Final = frozenset({Operation.INSERT, Operation.DELETE})

TABLES: Final[Mapping[str, TableRule]] = {
    "lists": TableRule("public", "lists", frozenset({"owner_id", "name", "created_at"})),
    # who shares a list is added and removed, not changed
    "list_members": TableRule("public", "list_members", frozenset({"list_id", "user_id", "role"}), _SHARING),
    "todos": TableRule(
        "public", "todos", frozenset({"list_id", "title", "notes", "done", "created_at", "completed_at"})
    ),
}


def upload_section() -> dict[str, object]:
    """The same as the service config has it."""
    tables = {
        name: {
            "columns": sorted(rule.columns or ()),
            "operations": [each.value for each in Operation if each in rule.operations],
        }
        for name, rule in TABLES.items()
    }
    return {"role": ROLE, "tables": tables}


def make_policies(conn: psycopg.Connection) -> None:
    """Make the role and the policies, or have them as they should be."""
    with conn.transaction():
        conn.execute("set local client_min_messages = warning")  # what was not there to be dropped is no news
        conn.execute(resources.files(__package__).joinpath("upload.sql").read_bytes())
