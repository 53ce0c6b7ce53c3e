"""The tables of a storm, one for each way of telling rows apart, and what the rules make of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LEDGER = "ledger"
USERS = ("u0", "u1")
ROOMS = tuple(f"r{n}" for n in range(4))
REGIONS = ("east", "west", "north")

CONFIG = """
config: {edition: 3}
streams:
  ledger:
    auto_subscribe: true
    query: SELECT * FROM ledger
  keyed:
    auto_subscribe: true
    query: SELECT * FROM keyed WHERE owner = auth.user_id()
  paired:
    auto_subscribe: true
    query: SELECT * FROM paired
  indexed:
    auto_subscribe: true
    query: SELECT * FROM indexed WHERE owner = auth.user_id()
  whole:
    auto_subscribe: true
    query: SELECT * FROM whole WHERE owner = auth.user_id()
  plain:
    auto_subscribe: true
    query: SELECT * FROM plain
  leaves:
    auto_subscribe: true
    query: SELECT * FROM leaves WHERE owner = auth.user_id()
  rooms:
    auto_subscribe: true
    query: SELECT * FROM rooms WHERE owner = auth.user_id()
  guests:
    auto_subscribe: true
    query: SELECT * FROM guests WHERE room IN (SELECT id FROM rooms WHERE owner = auth.user_id())
"""

_COMMON = "owner text, n int, body text, big text"


@dataclass(frozen=True, slots=True)
class Kind:
    """One table. `id` names a row to devices. `key` are the columns that an upsert finds a row by, `unique` says that
    no two rows share an id, `fixed` that rows are never changed."""

    name: str
    columns: str
    after: str = ""
    key: str = "id"
    unique: bool = True
    fixed: bool = False
    by_owner: bool = True

    def create(self, name: str = "") -> str:
        """The statements that make it, perhaps under another name."""
        made = name or self.name
        external = (
            "" if "partition by" in self.columns else f"alter table {made} alter column big set storage external;"
        )
        return f"create table {made} {self.columns}; {external} {self.after.replace('TABLE', made)}"


KINDS = {
    kind.name: kind
    for kind in (
        Kind("keyed", f"(id text primary key, {_COMMON})"),
        Kind("paired", f"(a int, b text, id text, {_COMMON}, primary key (a, b))", key="a, b", by_owner=False),
        Kind(
            "indexed",
            f"(id text not null, {_COMMON})",
            "create unique index TABLE_by_id on TABLE (id);"
            " alter table TABLE replica identity using index TABLE_by_id;",
        ),
        Kind("whole", f"(id text, {_COMMON})", "alter table TABLE replica identity full;", key="", unique=False),
        Kind(
            "plain",
            f"(id text, {_COMMON})",
            "alter table TABLE replica identity nothing;",
            key="",
            unique=False,
            fixed=True,
            by_owner=False,
        ),
        Kind(
            "leaves",
            f"(id text, region text, {_COMMON}, primary key (id, region)) partition by list (region)",
            "".join(f"create table TABLE_{r} partition of TABLE for values in ('{r}');" for r in REGIONS),
            key="id, region",
            unique=False,
        ),
        Kind("rooms", f"(id text primary key, {_COMMON})"),
        Kind("guests", f"(id text primary key, room text, {_COMMON})", by_owner=False),
    )
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row as devices are to show it (`text`), and what decides who sees it."""

    text: str
    owner: str
    room: str

    @staticmethod
    def of(fields: Mapping[str, object]) -> Row:
        return Row(canonical(fields), str(fields.get("owner")), str(fields.get("room")))


Rows = tuple[Row, ...]
State = Mapping[str, Mapping[str, Rows]]
"""By table and object id, all rows."""
Shown = Counter[tuple[str, str]]
"""How often a device has each (table, row)."""


def canonical(fields: Mapping[str, object]) -> str:
    """A row as text: what is null is not there, and of what is long a digest."""
    return json.dumps({name: _short(value) for name, value in fields.items() if value is not None}, sort_keys=True)


def _short(value: object) -> object:
    if isinstance(value, dict | list):  # devices have it as JSON
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, str) and len(value) > 60:
        return f"{len(value)} letters, {hashlib.sha256(value.encode()).hexdigest()[:12]}"
    return value


def shown_to(user: str, state: State, tables: Iterable[str]) -> Shown:
    """What the rules give a user of some tables."""
    rooms = {room for room, rows in state.get("rooms", {}).items() for row in rows if row.owner == user}
    shown: Shown = Counter()
    for name in tables:
        kind = KINDS[name]
        for rows in state.get(name, {}).values():
            for row in rows:
                if row.room in rooms if name == "guests" else (not kind.by_owner or row.owner == user):
                    shown[name, row.text] += 1
    return shown
