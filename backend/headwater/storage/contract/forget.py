"""Finding a value in all that a store keeps, and erasing what is left of it. History itself is rewritten by compaction
(`headwater.compaction`); here is what is sought, where a store can have it, and how its files lose what is deleted.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import orjson

from headwater.decode.copytext import join_cells
from headwater.oplog.op import finished_op
from headwater.storage.contract.store import Lease, StoreError
from headwater.storage.shared.write_key import user_in_key

LEAST_TEXT = 5
"""Characters of a text to forget. A shorter one is found by chance in compressed bytes."""


class UnerasedError(StoreError):
    """What was deleted may still be in the store's files."""

    code = "HW_4201"


class Sought(Protocol):
    """What is to be forgotten."""

    @property
    def hints(self) -> tuple[str, ...]:
        """An op that is to be forgotten has one of these in its text."""

    def is_in(self, op: str) -> bool:
        """Whether a finished op has to go: a PUT or a REMOVE."""


@dataclass(frozen=True, slots=True)
class SoughtText:
    """A text, in whatever form a store writes it: plain, as JSON, as JSON within JSON, as a COPY cell, as a user's
    id in the key of a write checkpoint."""

    text: str

    @property
    def hints(self) -> tuple[str, ...]:
        forms = [self.text, join_cells([self.text]), user_in_key(self.text)]
        for encode in (_json, _ascii_json):
            once = encode(self.text)
            forms += [once, encode(once), encode(encode(once))]
        return tuple(dict.fromkeys(forms))

    def is_in(self, op: str) -> bool:
        return '"op":"PUT"' in op or '"op":"REMOVE"' in op


def _json(text: str) -> str:
    return orjson.dumps(text).decode()[1:-1]


def _ascii_json(text: str) -> str:
    return json.dumps(text)[1:-1]


@dataclass(frozen=True, slots=True)
class SoughtRow:
    """All versions of one row of a source table. `others` are the generations of other tables, whose rows may have the
    same id. With `id_too` also the REMOVEs, which say no more than the id."""

    row_id: str
    salt: bytes
    others: frozenset[str]
    id_too: bool = False

    @property
    def hints(self) -> tuple[str, ...]:
        return (f'"object_id":{orjson.dumps(self.row_id).decode()}', f'.{self._digest}"')

    @property
    def _digest(self) -> str:
        """How the row is told from others where its id is not the object's: see `oplog.row_id.row_subkey`."""
        return base64.urlsafe_b64encode(
            hashlib.blake2b(self.row_id.encode(), digest_size=12, key=self.salt).digest()
        ).decode()

    def is_in(self, op: str) -> bool:
        found = orjson.loads(op)
        if found["op"] != "PUT" and not (self.id_too and found["op"] == "REMOVE"):
            return False
        table, _, digest = found["subkey"].partition(".")
        return digest == self._digest if digest else found["object_id"] == self.row_id and table not in self.others


class FoundOp(NamedTuple):
    """An op that has a hint in it. `bucket` is 0 where it belongs to none: unpublished work, or a removed bucket."""

    bucket: int
    op_id: int
    line: str


@dataclass(frozen=True, slots=True)
class FoundText:
    """So many texts of one column that have what is sought, and how many of those may be erased. `table` is a dataset
    of `storage.contract.archive` or something that is not taken out, such as `requests`; rows of a generation of a
    source table are in `rows_<generation>`."""

    table: str
    column: str
    count: int
    erasable: int


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """A file of the store, or what a database keeps a table in. `found` says whether its bytes have what was sought."""

    name: str
    size: int
    found: bool


@dataclass(slots=True)
class Searched:
    """How much a search looked at."""

    ops: int = 0
    segments: int = 0
    segment_bytes: int = 0
    texts: int = 0


class ForgetStore(Protocol):
    """A connection of its own, for one thread."""

    def ops(self, hints: Sequence[str], searched: Searched) -> Iterator[FoundOp]:
        """Every op of the store, published or not, that has one of `hints` in its text."""

    def texts(self, hints: Sequence[str], searched: Searched) -> list[FoundText]:
        """Every column of text, but for ops, in which something has one of `hints`."""

    def rows(self, table: int, row_id: str) -> int:
        """How many current rows of a generation have this id: 1 or 0."""

    def erase_texts(self, lease: Lease, hints: Sequence[str]) -> int:
        """Erase the texts that nothing depends on, in short transactions: what flushes touched (readers then look at
        everything once), requests that are done or failed, versions that are stopped or failed and the notes of all,
        write checkpoints by their keys. All others are there because something needs them. Returns how many."""

    def named_buckets(self, hints: Sequence[str]) -> list[int]:
        """Keys of the buckets whose names have one of `hints`."""

    def drop_bucket(self, lease: Lease, bucket: int) -> None:
        """Remove a bucket in which nothing stands, with its history."""

    def unpublished(self) -> bool:
        """Whether a bulk job is under way, or has left something."""

    def rewrite(self, say: Callable[[str], None]) -> None:
        """Write the store's files anew, so that they hold nothing that was deleted. Raises UnerasedError."""

    def search_files(self, hints: Sequence[str]) -> list[SearchedFile]:
        """Look for `hints` in the bytes of the store's files; none when they can't be read."""

    def size(self) -> int:
        """Bytes that `rewrite` has to write."""

    def close(self) -> None: ...


def found_in_segment(content: bytes, hints: Sequence[str], first: int, sealed: bool) -> Iterator[tuple[int, str]]:
    """The ops of a segment's content that have a hint in them, finished, with their ids."""
    if not any(hint.encode() in content for hint in hints):
        return
    for number, line in enumerate(content.decode().split("\n")):
        if any(hint in line for hint in hints):
            op = line if sealed else finished_op(first + number, line)
            yield int(op[10 : op.index('"', 10)]), op
