"""Turns a row into ops. Live replication, Spark tasks and previews all use this code, so they agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import orjson

from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import LEFT_OUT, SURELY_AN_OP, fitting, with_left_out, without_left_out
from headwater.oplog.op import put_body, put_checksum, remove_body, type_json
from headwater.oplog.row_id import row_subkey
from headwater_rules.plan import Value
from headwater_rules.results import LookupEntry, Put, RowResult


class Member(NamedTuple):
    """A bucket that a current row is in: the digest of its data there, its output table and object id."""

    bucket: int
    digest: int
    table: str
    id: str


class Bucket(NamedTuple):
    """A bucket: the key under which the store keeps it, its name, which is its identity, and its definition."""

    key: int
    name: str
    definition: str


Buckets = dict[str, Bucket]
"""By name: two buckets may have the same key until the store has moved one of them."""


class DraftOp(NamedTuple):
    """An op without op id."""

    bucket: int
    checksum: int
    body: str


class Written(NamedTuple):
    """What is to be stored of a row: its memberships as text, its lookups, and errors of rules in words."""

    members: str
    lookups: Sequence[LookupEntry]
    errors: Sequence[str]


def members_pieces(bucket: int, table: str, other_id: str | None = None) -> tuple[str, str]:
    """What the stored text of a row's only membership has before and after its digest. `other_id` is the object id if
    that is not the row id."""
    last = "" if other_id is None else f",{orjson.dumps(other_id).decode()}"
    return f"[[{bucket},", f",{type_json(table)}{last}]]"


def only_member(text: str, head: str, tail: str) -> bool:
    """Whether stored memberships are one, made of these pieces and some digest."""
    return text.startswith(head) and text.endswith(tail) and text[len(head) : -len(tail)].isdecimal()


def encode_members(members: Sequence[Member], row_id: str) -> str:
    """Memberships as compact text for storage. The object id is left out where it is the row id, as it usually is."""
    if not members:
        return ""
    return orjson.dumps(
        [[m.bucket, m.digest, m.table] if m.id == row_id else [m.bucket, m.digest, m.table, m.id] for m in members]
    ).decode()


def decode_members(text: str, row_id: str) -> list[Member]:
    """The inverse of `encode_members`. A text that was damaged in storage counts as none: audits then find that the row
    is not in its buckets, and that these have ops without a row."""
    if not text:
        return []
    try:
        entries = orjson.loads(text)
        if LEFT_OUT in text:
            entries = without_left_out(entries)
        members = [Member(m[0], m[1], m[2], m[3] if len(m) > 3 else row_id) for m in entries]
    except (ValueError, TypeError, IndexError):
        return []
    return members if all(type(m[0]) is type(m[1]) is int for m in members) else []


def with_members(text: str, buckets: Collection[int], others: str) -> str:
    """Stored memberships, with those in `buckets` replaced by `others`, which are all in these buckets."""
    try:
        kept = [entry for entry in orjson.loads(text or "[]") if entry[0] not in buckets]
    except (ValueError, TypeError, IndexError):
        kept = []
    entries = kept + orjson.loads(others or "[]")
    return orjson.dumps(entries).decode() if entries else ""


def rekeyed_members(text: str, before: str, after: str) -> str:
    """Stored memberships of a row whose id was `before` and is `after` now. A damaged text is returned as it is."""
    try:
        entries = orjson.loads(text or "[]")
        moved = [_under(entry, before, after) for entry in entries]
    except (ValueError, TypeError, IndexError):
        return text
    return orjson.dumps(moved).decode() if moved else ""


def _under(entry: list[object], before: str, after: str) -> list[object]:
    if len(entry) > 4:
        return entry  # an op that is left out has no object id
    object_id = entry[3] if len(entry) > 3 else before
    return entry[:3] if object_id == after else [*entry[:3], object_id]


def expected_members(puts: Sequence[Put], keys: StoreKeys) -> set[Member]:
    """The memberships of a row with these `puts`."""
    last = {(keys.bucket(p.bucket), p.table, p.id): p.data for p in fitting(puts)[0]}
    return {Member(bucket, keys.content(table, oid, data), table, oid) for (bucket, table, oid), data in last.items()}


class RowKeys(NamedTuple):
    """What the subkeys of a row depend on. `origin` is the `subkey_origin` of a row that had another id before."""

    table_id: int
    row_id: str
    store: StoreKeys
    origin: str | None = None

    def subkey(self, object_id: str) -> str:
        return row_subkey(self.origin, self.table_id, self.row_id, object_id, self.store)


def row_ops(previous: Sequence[Member], puts: Sequence[Put], keys: RowKeys) -> tuple[list[DraftOp], list[Member]]:
    """The ops that change a row's entries in buckets from `previous` to `puts`, and its memberships afterwards.

    An entry whose data did not change gives no op. A bucket has one entry per (table, id): of several, the last one
    wins, as it would on the device.
    """
    before = {(m.bucket, m.table, m.id): m.digest for m in previous}
    after: dict[tuple[int, str, str], int] = {}
    ops: list[DraftOp] = []
    if len(puts) > 1:
        puts = list({(p.bucket, p.table, p.id): p for p in puts}.values())
    made, digest, body = None, 0, ""
    for put in puts:
        # A row may be large and in many buckets: its body is rendered once for all of them
        if made is None or put.data is not made.data or put[2:4] != made[2:4]:
            made, digest, body = put, keys.store.content(put.table, put.id, put.data), ""
        place = (keys.store.bucket(put.bucket), put.table, put.id)
        after[place] = digest
        if before.get(place) != digest:
            body = body or put_body(put.table, put.id, keys.subkey(put.id), put.data, digest)
            ops.append(DraftOp(place[0], put_checksum(digest), body))
    ops.extend(
        _remove(bucket, table, object_id, keys)
        for bucket, table, object_id in before
        if (bucket, table, object_id) not in after
    )
    return ops, [Member(bucket, digest, table, oid) for (bucket, table, oid), digest in after.items()]


def _remove(bucket: int, table: str, object_id: str, keys: RowKeys) -> DraftOp:
    subkey = keys.subkey(object_id)
    checksum = keys.store.removal(table, object_id, subkey)
    return DraftOp(bucket, checksum, remove_body(table, object_id, subkey, checksum))


class RowProgram(Protocol):
    """The rules, bound to the columns of one table."""

    def evaluate(self, values: Sequence[Value], row_id: str) -> RowResult: ...


PlainWrite = Callable[[Sequence[str | None], str, str, list[DraftOp], Buckets], str | None]
"""Does for usual rows what `TableTransform.write` does: (cells, row id, stored memberships, ops, buckets) ->
memberships to store, or None for a row that it leaves alone."""


@dataclass(frozen=True, slots=True)
class TableTransform:
    """Turns the cells of one table's rows into entries in buckets and lookups. `definitions` are the names of the
    plan's bucket definitions, by position. `plain` is there if it can write rows of the table."""

    table_id: int
    keys: StoreKeys
    convert: Callable[[Sequence[str | None]], list[Value]]
    program: RowProgram
    definitions: Sequence[str]
    plain: PlainWrite | None = None

    def evaluate(self, cells: Sequence[str | None], row_id: str) -> RowResult:
        return self.program.evaluate(self.convert(cells), row_id)

    def write(
        self,
        previous: str,
        origin: str | None,
        row_id: str,
        cells: Sequence[str | None],
        ops: list[DraftOp],
        buckets: Buckets,
    ) -> Written:
        """Evaluate a row, and add the ops that change its entries from stored memberships, and the buckets."""
        if self.plain is not None and origin is None:
            members = self.plain(cells, row_id, previous, ops, buckets)
            if members is not None:
                return _new_written(Written, (members, (), ()))
        puts, lookups, errors = self.program.evaluate(self.convert(cells), row_id)
        return Written(self.move(previous, origin, row_id, puts, ops, buckets), lookups, errors)

    def move(
        self,
        previous: str,
        origin: str | None,
        row_id: str,
        puts: Sequence[Put],
        ops: list[DraftOp],
        buckets: Buckets,
    ) -> str:
        """Add the ops that change a row's entries from stored memberships to `puts`, and the buckets. Returns
        the memberships to store."""
        if len(puts) == 1 and origin is None:
            stored = self._move_in_place(previous, row_id, puts[0], ops, buckets)
            if stored is not None:
                return stored
        puts, left_out = fitting(puts)
        for put in puts:
            buckets[put.bucket] = Bucket(self.keys.bucket(put.bucket), put.bucket, self.definitions[put.definition])
        keys = RowKeys(self.table_id, row_id, self.keys, origin)
        drafts, members = row_ops(decode_members(previous, row_id), puts, keys)
        ops += drafts
        stored = encode_members(members, row_id)
        return with_left_out(stored, left_out, self.keys) if left_out else stored

    def _move_in_place(self, previous: str, row_id: str, put: Put, ops: list[DraftOp], buckets: Buckets) -> str | None:
        """`move` without decoding memberships, for a row that was in no bucket, or only as the same object in the
        bucket of `put`. None for all others."""
        position, name, table, object_id, data = put
        bucket = self.keys.bucket(name)
        head, tail = members_pieces(bucket, table, None if object_id == row_id else object_id)
        if len(data) > SURELY_AN_OP or (previous and not only_member(previous, head, tail)):
            return None
        digest = self.keys.content(table, object_id, data)
        members = f"{head}{digest}{tail}"
        if members != previous:
            buckets[name] = Bucket(bucket, name, self.definitions[position])
            subkey = row_subkey(None, self.table_id, row_id, object_id, self.keys)
            ops.append(
                draft_op(DraftOp, (bucket, put_checksum(digest), put_body(table, object_id, subkey, data, digest)))
            )
        return members


draft_op: Callable[[type[DraftOp], tuple[int, int, str]], DraftOp] = tuple.__new__  # half the time of DraftOp(…)
_new_written: Callable[[type[Written], tuple[str, Sequence[LookupEntry], Sequence[str]]], Written] = tuple.__new__
