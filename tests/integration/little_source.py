"""A source that exists on paper only: its n-th transaction, its rows after it, and what sync configs make of them.

All of it follows from numbers, so that a process may die at any time and another one goes on, as from a slot, and a
test knows what must be there.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater_rules.results import LookupEntry, Put

SOURCE = "default"
RELATION = Relation(
    1, "public", "notes", ReplicaIdentity.DEFAULT, (Column("id", 25, -1, True), Column("text", 25, -1, False))
)

DEFINITIONS = ("d0.1", "d1.1", "d2.1", "d3.1", "d4.1")
LOOKUPS = ("l0", "l1")
BUCKETS_EACH = 3

_ROWS = 60
_TRUNCATED_EVERY = 41

Rows = Mapping[str, str]
"""Texts by row id."""


@cache
def transaction(number: int) -> Mapping[str, str | None] | None:
    """What it does: texts by row id, None for a row that it deletes; altogether None for a TRUNCATE."""
    if number % _TRUNCATED_EVERY == 0:
        return None
    moments = random.Random(number)
    ids = [str(moments.randrange(_ROWS)) for _ in range(moments.randrange(1, 12))]
    return {row_id: None if moments.random() < 0.15 else f"t{moments.randrange(500)}" for row_id in ids}


@cache
def rows_after(number: int) -> Rows:
    """What stands after a transaction."""
    if number % _TRUNCATED_EVERY == 0:
        return {}
    rows = dict(rows_after(number - 1))
    for row_id, text in (transaction(number) or {}).items():
        rows.pop(row_id, None)
        if text is not None:
            rows[row_id] = text
    return rows


def sides_of(yaml: str) -> dict[str, str]:
    """The row sides of a sync config, which here is just their names, and their digests."""
    return {name: f"digest of {name}" for name in yaml.split()}


def some_config(moments: random.Random) -> str:
    """Some definitions and lookups."""
    names = [*moments.sample(DEFINITIONS, moments.randrange(1, 4)), *moments.sample(LOOKUPS, moments.randrange(3))]
    return " ".join(sorted(names))


def buckets_of(definition: str) -> list[str]:
    """All that it can have."""
    return [f'{definition}["{number}"]' for number in range(BUCKETS_EACH)]


def puts(sides: Iterable[str], row_id: str, text: str) -> list[Put]:
    """What a row gives for these row sides. Every second definition has it under another id, and not every row."""
    found = []
    for definition in sides:
        if definition not in DEFINITIONS:
            continue
        position = DEFINITIONS.index(definition)
        spread = zlib.crc32(f"{position} {text}".encode())
        if position % 2 and spread % 5 == 0:
            continue
        object_id = f"o{row_id}" if position % 2 else row_id
        data = json.dumps({"text": text, "by": definition})
        found.append(Put(position, buckets_of(definition)[spread % BUCKETS_EACH], "notes", object_id, data))
    return found


def entries(sides: Iterable[str], row_id: str, text: str) -> list[LookupEntry]:
    """The lookup entries of a row."""
    return [LookupEntry(key_of(name, row_id), json.dumps([text])) for name in sides if name in LOOKUPS]


def key_of(lookup: str, row_id: str) -> str:
    """The key under which a row stands in a lookup, with a few others."""
    return f'{lookup}["{zlib.crc32(row_id.encode()) % 7}"]'


def expected_buckets(sides: Iterable[str], rows: Rows) -> dict[str, dict[tuple[str, str], str]]:
    """Data by output table and id, of every bucket of these definitions."""
    named = list(sides)
    found: dict[str, dict[tuple[str, str], str]] = {
        bucket: {} for definition in named if definition in DEFINITIONS for bucket in buckets_of(definition)
    }
    for row_id, text in rows.items():
        for put in puts(named, row_id, text):
            found[put.bucket][put.table, put.id] = put.data
    return found


def expected_lookups(sides: Iterable[str], rows: Rows) -> dict[str, set[str]]:
    """Outputs by key; keys that have none are named too."""
    named = [name for name in sides if name in LOOKUPS]
    found = {key: set[str]() for name in named for key in _keys(name)}
    for row_id, text in rows.items():
        for entry in entries(named, row_id, text):
            found[entry.key].add(entry.output)
    return found


def _keys(lookup: str) -> Iterator[str]:
    return (f'{lookup}["{number}"]' for number in range(7))
