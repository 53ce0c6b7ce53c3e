"""Finding a value everywhere in a store and erasing it. Compaction (`headwater.compaction`) rewrites the history; this
module finds values and erases texts. How deleted data leaves the store's files is each database's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import orjson

from headwater.decode.copytext import join_cells
from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import finished_op
from headwater.storage.contract.reader import user_in_key
from headwater.storage.contract.store import Lease, StoreError
from headwater.storage.shared.segments import unpacked
from headwater.storage.sql.cursor import Cursor, TableGoneError

LEAST_TEXT = 5
"""Minimum length of a text to forget, in characters. Shorter ones occur by chance in texts of others."""


class UnerasedError(StoreError):
    """Deleted data may still be in the store's files."""

    code = "HW_4201"


class ForgetTarget(Protocol):
    """What is to be found and forgotten."""

    @property
    def hints(self) -> tuple[str, ...]:
        """Texts of which every op to be forgotten contains at least one."""

    def is_in(self, op: str) -> bool:
        """Whether a finished op, a PUT or a REMOVE, has to go."""


@dataclass(frozen=True, slots=True)
class TextTarget:
    """A text in every form in which a store writes it: plain, as JSON, as JSON within JSON, as a COPY cell, and as a
    user's id in the key of a write checkpoint."""

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
class RowTarget:
    """All versions of one row of a source table. `others` are the generations of other tables, whose rows may have the
    same id. `id_too` includes the REMOVEs, which hold nothing but the id."""

    row_id: str
    keys: StoreKeys
    others: frozenset[str]
    id_too: bool = False

    @property
    def hints(self) -> tuple[str, ...]:
        return (f'"object_id":{orjson.dumps(self.row_id).decode()}', f'.{self._digest}"')

    @property
    def _digest(self) -> str:
        """Identifies the row where its id is not the object's id: see `oplog.row_id.row_subkey`."""
        return self.keys.subkey(self.row_id)

    def is_in(self, op: str) -> bool:
        found = orjson.loads(op)
        if found["op"] != "PUT" and not (self.id_too and found["op"] == "REMOVE"):
            return False
        table, _, digest = found["subkey"].partition(".")
        return digest == self._digest if digest else found["object_id"] == self.row_id and table not in self.others


class FoundOp(NamedTuple):
    """An op that contains a hint. `bucket` is 0 where it belongs to none: unpublished work, or a removed bucket."""

    bucket: int
    op_id: int
    line: str


@dataclass(frozen=True, slots=True)
class FoundText:
    """The number of texts of one column that contain what is searched for, and how many of them may be erased. `table`
    is a dataset of `storage.contract.archive` or something that is not exported, such as `requests`; rows of a
    generation of a source table are in `rows_<generation>`."""

    table: str
    column: str
    count: int
    erasable: int


@dataclass(slots=True)
class Searched:
    """Counts of what a search has looked at."""

    ops: int = 0
    segments: int = 0
    segment_bytes: int = 0
    texts: int = 0


class _Erasure(NamedTuple):
    """How texts of a column are erased: `statement`, for rows that satisfy `condition`."""

    condition: str
    statement: str


_ERASURES: dict[tuple[str, str], _Erasure] = {
    # Null means "anything": readers then check everything once
    ("flushes", "buckets"): _Erasure("true", "update flushes set buckets = null"),
    ("flushes", "lookups"): _Erasure("true", "update flushes set lookups = null"),
    **{
        ("requests", column): _Erasure("state in ('done', 'failed')", "delete from requests")
        for column in ("payload", "progress", "result")
    },
    ("revocations", "value"): _Erasure("true", "delete from revocations"),
    ("cases", "author"): _Erasure("true", "update cases set author = ''"),
    ("cases", "content"): _Erasure("true", "delete from cases"),
    ("cases", "name"): _Erasure("true", "delete from cases"),
    ("changes", "detail"): _Erasure("true", "update changes set detail = '{}'"),
    ("changes", "who"): _Erasure("true", "update changes set who = ''"),
    ("versions", "author"): _Erasure("true", "update versions set author = ''"),
    ("versions", "message"): _Erasure("true", "update versions set message = ''"),
    ("versions", "note"): _Erasure("true", "update versions set note = ''"),
    ("versions", "yaml"): _Erasure("state in ('stopped', 'failed')", "delete from versions"),
    ("write_checkpoints", "key"): _Erasure("true", "delete from write_checkpoints"),
}
"""Erasable texts, by table and column. All other texts are needed."""

_SEGMENTS = """
select coalesce(b.id, 0), coalesce(s.first_op, 0), coalesce(s.sealed, false), x.bodies from segment_blobs x
left join segments s on s.blob = x.id left join buckets b on b.id = x.bucket
"""


class StoreFiles(Protocol):
    """The files that a database keeps a store in."""

    def size(self) -> int:
        """The number of bytes that `rewrite` has to write."""

    def staged(self) -> bool:
        """Whether a bulk job has left staged files."""

    def rewrite(self, say: Callable[[str], None]) -> None:
        """Rewrite them, so that they no longer hold deleted data. Raises UnerasedError."""


class ForgetStore:
    """Finds and erases values, with connections of its own. Used by one thread. The first of the `databases` has all
    but the write checkpoints, which may be in another one."""

    def __init__(self, databases: Sequence[Cursor], files: StoreFiles) -> None:
        self._db, *_ = self._all = databases
        self.files = files

    def ops(self, hints: Sequence[str], searched: Searched) -> Iterator[FoundOp]:
        """Every op of the store, published or not, that contains one of `hints`."""
        db = self._db
        searched.ops += int(db.rows("select count(*) from ops")[0][0])
        query = "select coalesce(b.id, 0), o.id, o.line from ops o left join buckets b on b.id = o.bucket"
        for found in db.stream(f"{query} where {_contains(db, 'o.line', hints)}", *hints):
            yield FoundOp(*found)
        for bucket, first, sealed, bodies in db.stream(_SEGMENTS):
            content = unpacked(bodies)
            searched.segments += 1
            searched.segment_bytes += len(content)
            for op_id, op in found_in_segment(content, hints, first, bool(sealed)):
                yield FoundOp(bucket, op_id, op)

    def texts(self, hints: Sequence[str], searched: Searched) -> list[FoundText]:
        """Every text column, except ops, in which a value contains one of `hints`."""
        found: list[FoundText] = []
        for db, table, column in self._text_columns():
            erasure = _ERASURES.get((table, column))
            condition = erasure.condition if erasure else "false"
            counts = f"select count(*), count(case when {condition} then 1 end) from {table}"
            try:
                ((count, erasable),) = db.rows(f"{counts} where {_contains(db, column, hints)}", *hints)
            except TableGoneError:
                continue  # swept away meanwhile
            searched.texts += 1
            if count:
                found.append(FoundText(table, column, count, erasable))
        return found

    def _text_columns(self) -> list[tuple[Cursor, str, str]]:
        return [(db, *column) for db in self._all for column in db.rows(db.dialect.text_columns)]

    def rows(self, table: int, row_id: str) -> int:
        """The number of current rows of a generation with this id: 1 or 0."""
        try:
            query = f"select count(*) from rows_{table:d} where row_id = ?"
            return int(self._db.rows(query, self._db.dialect.stored_row_id(row_id))[0][0])
        except TableGoneError:
            return 0  # swept meanwhile

    def named_buckets(self, hints: Sequence[str]) -> list[int]:
        """Keys of the buckets whose names contain one of `hints`."""
        query = f"select id from buckets where {_contains(self._db, 'name', hints)}"
        return [key for (key,) in self._db.rows(query, *hints)]

    def unpublished(self) -> bool:
        """Whether a bulk job is running or has left staged data."""
        return bool(self._db.rows(self._db.dialect.staged)[0][0]) or self.files.staged()

    def erase_texts(self, lease: Lease, hints: Sequence[str]) -> int:
        """Erase the texts that nothing depends on, in short transactions: what flushes touched (readers then look at
        everything once), requests that are done or failed, versions that are stopped or failed, the notes of all and
        who wrote them, cases, who changed what, and write checkpoints by their keys. All others are there because
        something needs them. Returns how many."""
        erased = 0
        for db, table, column in self._text_columns():
            if erasure := _ERASURES.get((table, column)):
                statement = f"{erasure.statement} where {_contains(db, column, hints)} and {erasure.condition}"
                with db.transaction(lease if db is self._db else None):
                    erased += db.execute(statement, *hints)
        return erased

    def drop_bucket(self, lease: Lease, bucket: int) -> None:
        """Delete a bucket of which nothing but a CLEAR is left, with its history. Does nothing if ops came since."""
        with self._db.transaction(lease):
            self._db.execute("update state set retired = retired + 1")  # holds the store's lock first, as a flush does
            if self._db.one("select 1 from buckets where id = ? and last_op > clear_op", bucket) is not None:
                return
            for statement in (
                "delete from segment_blobs where id in (select blob from segments where bucket = ?)",
                "delete from segments where bucket = ?",
                "delete from ops where bucket = ?",
                "delete from buckets where id = ?",
            ):
                self._db.execute(statement, bucket)

    def close(self) -> None:
        for db in self._all:
            db.close()


def _contains(db: Cursor, column: str, hints: Sequence[str]) -> str:
    """A condition with the hints as its values."""
    return "(" + " or ".join([db.dialect.contains.format(column)] * len(hints)) + ")"


def found_in_segment(content: bytes, hints: Sequence[str], first: int, sealed: bool) -> Iterator[tuple[int, str]]:
    """The ops of a segment's content that contain a hint, finished, with their ids."""
    if not any(hint.encode() in content for hint in hints):
        return
    for number, line in enumerate(content.decode().split("\n")):
        if any(hint in line for hint in hints):
            op = line if sealed else finished_op(first + number, line)
            yield int(op[10 : op.index('"', 10)]), op
