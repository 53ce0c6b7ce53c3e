"""Limits on the size of a row and of an op, and what is stored instead of one that is larger.

A row over the limit is stored as a stub with its size. It can shrink, get another key and be deleted like any other,
but it is in no bucket and no lookup. An op over the limit is left out by itself: the row's memberships name the bucket,
and how large the op would be. Both depend on the row's values only, so live replication, bulk work and audits agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import orjson

from headwater.oplog.change import parts
from headwater.oplog.keys import StoreKeys
from headwater.oplog.row_id import Content
from headwater_rules.results import Put

ROW_LIMIT = 15 << 20
"""Bytes of a row as COPY text."""

OP_LIMIT = 15 << 20
"""Bytes of the row's JSON as an op carries it: a text within a text."""

REFUSED_NAMED = 20
"""How many rows a task of a bulk job logs; all are recorded in the store."""

# COPY never writes this escape, so no row looks like a stub
_STUB = "\\!"

# With fewer characters, bytes need not be counted: a character takes at most 4 bytes, or 6 as an escape in JSON
SURELY_A_ROW = ROW_LIMIT // 4
SURELY_AN_OP = OP_LIMIT // 6

LEFT_OUT = '"left out"'
"""The text that stored memberships contain when an op of the row was left out."""

_LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Stub:
    """What is stored of a row over the limit: its size in bytes, the content id of the row when it was last complete,
    and the size of each value as COPY writes it (none in stubs of earlier versions, and `without_sizes`)."""

    size: int
    content: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KnownSize:
    """A value of which only the size in bytes is known."""

    size: int


def stored_line(line: str) -> str:
    """The text that is stored for a row: its COPY text, or a stub when that is too large. A stub is returned as it
    is."""
    if len(line) <= SURELY_A_ROW:
        return line
    return line if is_stub(line) else stub_for(part.encode() for part in parts(line)) or line


def stub_for(line: Iterable[bytes]) -> str:
    """The stub of a row whose COPY text comes in parts. Empty if it is not too large."""
    content, sizes = Content(), [0]
    for part in line:
        content.add(part)
        first, *others = map(len, part.split(b"\t"))
        sizes[-1] += first
        sizes += others
    size = sum(sizes) + len(sizes) - 1
    return _stub(size, content.id(), sizes) if size > ROW_LIMIT else ""


def stub_after(before: Stub, sizes: Sequence[int]) -> str | None:
    """The new stub of a row, whose values have these sizes now. None when it is not too large any more."""
    size = sum(sizes) + len(sizes) - 1
    return _stub(size, before.content, sizes) if size > ROW_LIMIT else None


def without_sizes(stub: str) -> str:
    """The stub without the sizes of the values, for a row whose values may have changed. The stream goes on leaving
    them out, and by their former sizes, a row could count as too large that is not any more."""
    return stub.rpartition(" ")[0] if read_stub(stub).sizes else stub


def _stub(size: int, content: str, sizes: Sequence[int]) -> str:
    return f"{_STUB}{size} {content} {','.join(map(str, sizes))}"


def is_stub(line: str) -> bool:
    """Whether a stored line is a stub."""
    return line.startswith(_STUB)


def read_stub(line: str) -> Stub:
    """The stub in a stored line."""
    size, content, sizes = (*line.removeprefix(_STUB).split(" "), "")[:3]
    return Stub(int(size), content, tuple(map(int, sizes.split(","))) if sizes else ())


def fitting(puts: Sequence[Put]) -> tuple[Sequence[Put], Sequence[tuple[Put, int]]]:
    """The `puts` that can become ops, and those that are too large, with the bytes that each would have."""
    if all(len(put.data) <= SURELY_AN_OP for put in puts):
        return puts, ()
    sizes = [len(orjson.dumps(put.data)) for put in puts]
    return (
        [put for put, size in zip(puts, sizes, strict=True) if size <= OP_LIMIT],
        [(put, size) for put, size in zip(puts, sizes, strict=True) if size > OP_LIMIT],
    )


def with_left_out(members: str, left_out: Sequence[tuple[Put, int]], keys: StoreKeys) -> str:
    """Stored memberships with entries for the ops that are left out."""
    entries = orjson.loads(members) if members else []
    entries += [[keys.bucket(put.bucket), 0, put.table, _LEFT_OUT, size] for put, size in left_out]
    return orjson.dumps(entries).decode()


def without_left_out(entries: Sequence[Sequence[object]]) -> Sequence[Sequence[object]]:
    """Decoded memberships without the entries for ops that are left out."""
    return [entry for entry in entries if len(entry) < 5]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An op that a row does not get: its bucket's key, its output table, and how many bytes it would have."""

    bucket: int
    table: str
    size: int


def left_out_of(members: str) -> list[LeftOut]:
    """The ops that stored memberships name as left out."""
    if LEFT_OUT not in members:
        return []
    return [LeftOut(entry[0], entry[2], entry[4]) for entry in orjson.loads(members) if len(entry) == 5]


def row_refused(table: str, row_id: str, size: int) -> str:
    """The log line for a row over the limit."""
    return (
        f"[HW_2401] a row is too large and is left out: no device gets it ({table}, row {row_id}, {size:,} bytes of "
        f"{ROW_LIMIT:,} allowed); make it smaller in the source; `headwater store stats` lists such rows"
    )


def op_refused(table: str, row_id: str, size: int) -> str:
    """The log line for an op over the limit."""
    return (
        f"[HW_2402] the data that the rules select of a row is too large and is left out of a bucket ({table}, row "
        f"{row_id}, {size:,} bytes of {OP_LIMIT:,} allowed); select fewer columns, or make the row smaller in the "
        "source; `headwater store stats` lists such rows"
    )
