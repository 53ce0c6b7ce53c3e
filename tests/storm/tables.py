"""The tables of a storm, one for each way of telling rows apart, and what the rules make of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from tests.support.sync_configs import auto_streams

LEDGER = "ledger"
USERS = ("u0", "u1")
ROOMS = tuple(f"r{n}" for n in range(4))
REGIONS = ("east", "west", "north")

_OWN = "WHERE owner = auth.user_id()"
RULES = {
    "ledger": "",
    "keyed": _OWN,
    "paired": "",
    "indexed": _OWN,
    "whole": _OWN,
    "plain": "",
    "leaves": _OWN,
    "rooms": _OWN,
    "heavy": _OWN,
    "crowd": _OWN,
    "guests": f"WHERE room IN (SELECT id FROM rooms {_OWN})",
}
"""By table, the condition that its rows have to meet."""

_JOINED = {
    "homeless": "SELECT homeless.id, homeless.room{origin} FROM {guests} AS homeless"
    " WHERE NOT EXISTS (SELECT 1 FROM {rooms} AS r WHERE r.id = homeless.room)",
    "elsewhere": "SELECT elsewhere.id, elsewhere.room{origin} FROM {guests} AS elsewhere"
    " WHERE room NOT IN (SELECT id FROM {rooms} WHERE owner = 'u0')",
    "housed": "SELECT housed.id, housed.room, r.owner AS host{origin} FROM {guests} AS housed"
    " LEFT JOIN {rooms} AS r ON r.id = housed.room",
    "kin": 'SELECT kin.id, r.owner AS host{origin} FROM {guests} AS "kin" JOIN {rooms} AS r ON r.id = kin.room'
    " WHERE r.owner = kin.owner",
}
"""Guests by what there is of their rooms. Everybody gets them."""

FRESH, AGED = "fresh", "aged"
_TIMED = {
    FRESH: "SELECT fresh.id{origin} FROM {ledger} AS fresh WHERE fresh.at > now() - interval '3 seconds'",
    AGED: "SELECT aged.id{origin} FROM {ledger} AS aged WHERE NOT (aged.at > now() - interval '3 seconds')",
}
"""Transactions by how long ago they were."""


def further(place: str = "", origin: str = "") -> dict[str, str]:
    """The queries of these, by the table that devices have; with a column of that name for where rows are from."""
    tables = {name: place + name for name in ("guests", "rooms", LEDGER)}
    return {
        name: query.format(origin=f", {name}.source() AS {origin}" if origin else "", **tables)
        for name, query in (_JOINED | _TIMED).items()
    }


CROWDED = "crowded"
CROWDED_QUERY = "SELECT coalesce(room, '-') AS place, count(*) AS n, max(owner) AS last FROM guests GROUP BY 1"
"""Of a computed table, where there is one source."""

CONFIG = auto_streams(
    **{name: f"SELECT * FROM {name} {condition}".rstrip() for name, condition in RULES.items()},
    **further(),
    **{CROWDED: f"SELECT * FROM {CROWDED}"},
) + (
    f"tables:\n  {CROWDED}:\n    query: {CROWDED_QUERY}\n"
    "    key: [place]\n    refresh: {after: [guests], every: 2s, least: 100ms}\n"
)

_COMMON = "owner text, n int, body text, big text"
_MORE = ", ".join(f"c{n} text default 'c{n} of many'" for n in range(8))
_LARGEST = 15 << 20
HEAVY_SIZES = (500_000, 600_000, 500_000, 510_000, 800, 800, 31_250, 437_500)
"""How often 32 letters are repeated in each of the first heavy rows: over 15 MiB, some kB, 1 MB and 14 MB."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One table. `id` names a row to devices. `key` are the columns that an upsert finds a row by, `unique` says that
    no two rows share an id, `fixed` that rows are never changed. Where `heavy`, the column `spec` says what `big`
    holds, which takes too long to read."""

    name: str
    columns: str
    after: str = ""
    key: str = "id"
    unique: bool = True
    fixed: bool = False
    by_owner: bool = True
    heavy: bool = False

    @property
    def known(self) -> tuple[str, ...]:
        """The columns that always are there, and hold what writers wrote, whatever changes are made of the table."""
        own = {"paired": ("a", "b"), "leaves": ("region",), "guests": ("room",), "heavy": ("spec",)}
        return ("id", *own.get(self.name, ()), "owner", "body", "big")

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
        Kind("heavy", f"(id text primary key, {_COMMON}, spec text)", heavy=True),
        Kind("crowd", f"(id text primary key, {_COMMON}, {_MORE})"),
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


@dataclass(frozen=True, slots=True)
class Published:
    """What of a table is published: its columns, and the condition that rows have to meet."""

    columns: tuple[str, ...]
    row_filter: str

    def shown(self, fields: Mapping[str, object]) -> Rows:
        """What devices are to be shown of a row: nothing, if it is too large."""
        spec = str(fields.get("spec") or "") if "big" in self.columns else ""
        if spec and 32 * int(spec.partition(":")[2]) > _LARGEST:
            return ()
        return (Row.of({name: fields.get(name) for name in self.columns}),)


def select_rows(kind: Kind, published: Published | None) -> str:
    """The query for the ids of a table's rows, what is to be known of them, and whether they are published."""
    columns = dict.fromkeys((*kind.known, *(published.columns if published else ())))
    named = ", ".join(name for name in columns if not (kind.heavy and name == "big"))
    condition = published.row_filter if published else "false"
    return f"select x.id, row_to_json(x), {condition} from (select {named} from {kind.name}) x"


def completed(kind: Kind, fields: Mapping[str, object]) -> Mapping[str, object]:
    """A row of that query with what was not read."""
    return {**fields, "big": _heavy(str(fields["spec"])) if fields["spec"] else None} if kind.heavy else fields


@lru_cache(maxsize=1000)
def _heavy(spec: str) -> object:
    seed, _, times = spec.partition(":")
    return _short(hashlib.md5(seed.encode()).hexdigest() * int(times))


Rows = tuple[Row, ...]
Version = Mapping[str, object]
"""A row's known columns that are not null, of long ones a digest."""
Versions = Mapping[tuple[str, str], tuple[Version, ...]]
"""By table and object id, all rows."""


def version_of(kind: Kind, fields: Mapping[str, object]) -> Version:
    """A row's version."""
    return {name: _short(fields[name]) for name in kind.known if fields.get(name) is not None}


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


SHOWN = frozenset({*KINDS, *_JOINED})
"""The tables that devices have, but for those that are of the ledger and the computed one."""


def with_joined(tables: Collection[str]) -> frozenset[str]:
    """Some tables, and what is joined of them."""
    return frozenset({*tables, *(_JOINED if {"guests", "rooms"} <= set(tables) else ())})


def _joined_rows(state: State) -> Iterator[tuple[str, str]]:
    owners = {room: _known(row.owner) for room, rows in state["rooms"].items() for row in rows}
    guests = ((guest, row) for guest, rows in state["guests"].items() for row in rows)
    for guest, row in guests:
        room, host = _known(row.room), owners.get(row.room)
        if room not in owners:
            yield "homeless", canonical({"id": guest, "room": room})
        if room is not None and host != "u0":
            yield "elsewhere", canonical({"id": guest, "room": room})
        yield "housed", canonical({"id": guest, "room": room, "host": host})
        if host is not None and host == row.owner:
            yield "kin", canonical({"id": guest, "host": host})


def _known(text: str) -> str | None:
    return None if text == "None" else text


def shown_to(user: str, state: State, tables: Collection[str]) -> Shown:
    """What the rules give a user of some tables, and of what is joined of them where that is named."""
    rooms = {room for room, rows in state.get("rooms", {}).items() for row in rows if row.owner == user}
    shown: Shown = Counter()
    if {*_JOINED} <= set(tables):
        shown.update(_joined_rows(state))
    for name in tables:
        if name in _JOINED:
            continue
        kind = KINDS[name]
        for rows in state.get(name, {}).values():
            for row in rows:
                if row.room in rooms if name == "guests" else (not kind.by_owner or row.owner == user):
                    shown[name, row.text] += 1
    return shown
