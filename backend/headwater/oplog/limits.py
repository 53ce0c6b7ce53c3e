"""Limits on the size of a row and of an op, and what is stored instead of one that is larger.

A row over the limit is stored as a stub with its size. It can shrink, get another key and be deleted like any other,
but it is in no bucket and no lookup. An op over the limit is not made: the row's memberships name the bucket, and how
large the op would be. Both depend on the row's values only, so all agree that apply them: the stream
(`replication.stream.fold`), first snapshots and comparisons (`pipeline`), and audits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater.oplog.change import parts
from headwater.oplog.row_id import Content

ROW_LIMIT = 15 << 20
"""Bytes of a row as COPY text."""

OP_LIMIT = 15 << 20
"""Bytes of the row's JSON as an op carries it: a text within a text."""

OVERSIZED_NAMED = 20
"""How many rows a task of a bulk job logs; all are recorded in the store."""

# COPY never writes this escape, so no row looks like a stub
_STUB = "\\!"

# With fewer characters, bytes need not be counted: a character takes at most 4 bytes, or 6 as an escape in JSON
SURELY_A_ROW = ROW_LIMIT // 4
SURELY_AN_OP = OP_LIMIT // 6


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
