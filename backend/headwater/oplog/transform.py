"""Turns a row into ops. Live replication, Spark tasks and previews all use this code, so they agree.

Most rules amount to one entry for a row, made of columns alone. For these, code is generated for the table, which takes
two thirds of the time of converting, evaluating and rendering one after the other. It does only what is usual. For any
other row it returns None and has changed nothing, so that `TableTransform` does it in the general way, which also says
what is wrong with a row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import orjson

from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import OP_LIMIT, SURELY_AN_OP
from headwater.oplog.op import put_affixes, put_body, put_checksum, remove_body, type_json
from headwater.oplog.row_id import row_subkey
from headwater_rules.evaluate.joins import JoinedRows
from headwater_rules.evaluate.naming import as_text, key_text
from headwater_rules.evaluate.rows import PlainEntry, RowProgram
from headwater_rules.plan import Value
from headwater_rules.results import LookupEntry, Put, RowResult

_KNOWN_BUCKETS = 1 << 11
_LONGEST_KNOWN = 500


class BucketMembership(NamedTuple):
    """A bucket that a current row is in: the digest of its data there, its output table and object id."""

    bucket: int
    digest: int
    table: str
    id: str


class OversizedOp(NamedTuple):
    """An op that a row does not get: its bucket's key, its output table, and how many bytes it would have."""

    bucket: int
    table: str
    size: int


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


class TransformedRow(NamedTuple):
    """What is to be stored of a row: its memberships as text, its lookups, errors of rules in words, and until when it
    is right, as in `RowResult`."""

    memberships: str
    lookups: Sequence[LookupEntry]
    errors: Sequence[str]
    flip: int | None


draft_op: Callable[[type[DraftOp], tuple[int, int, str]], DraftOp] = tuple.__new__  # half the time of DraftOp(…)
_new_row: Callable[[type[TransformedRow], tuple[str, Sequence[LookupEntry], Sequence[str], int | None]], TransformedRow]
_new_row = tuple.__new__


# memberships, as the store keeps them with a row

OVERSIZED = '"left out"'
"""The text that stored memberships contain when the row has an oversized op."""

_OVERSIZED: str = orjson.loads(OVERSIZED)


def encode_memberships(
    memberships: Sequence[BucketMembership], row_id: str, oversized: Sequence[OversizedOp] = ()
) -> str:
    """Memberships as compact text for storage. The object id is left out where it is the row id, as it usually is."""
    if not memberships and not oversized:
        return ""
    entries: list[list[int | str]] = [
        [m.bucket, m.digest, m.table] if m.id == row_id else [m.bucket, m.digest, m.table, m.id] for m in memberships
    ]
    entries += [[op.bucket, 0, op.table, _OVERSIZED, op.size] for op in oversized]
    return orjson.dumps(entries).decode()


def decode_memberships(text: str, row_id: str) -> list[BucketMembership]:
    """The inverse of `encode_memberships`, without oversized ops. A text that was damaged in storage counts as none:
    audits then find that the row is not in its buckets, and that these have ops without a row."""
    if not text:
        return []
    try:
        found = [
            BucketMembership(m[0], m[1], m[2], m[3] if len(m) > 3 else row_id) for m in orjson.loads(text) if len(m) < 5
        ]
    except (ValueError, TypeError, IndexError):
        return []
    return found if all(type(m[0]) is type(m[1]) is int for m in found) else []


def oversized_ops(text: str) -> list[OversizedOp]:
    """The oversized ops in stored memberships."""
    if OVERSIZED not in text:
        return []
    return [OversizedOp(entry[0], entry[2], entry[4]) for entry in orjson.loads(text) if len(entry) == 5]


def replace_memberships(text: str, buckets: Collection[int], others: str) -> str:
    """Stored memberships, with those in `buckets` replaced by `others`, which are all in these buckets."""
    try:
        kept = [entry for entry in orjson.loads(text or "[]") if entry[0] not in buckets]
    except (ValueError, TypeError, IndexError):
        kept = []
    entries = kept + orjson.loads(others or "[]")
    return orjson.dumps(entries).decode() if entries else ""


def rekeyed_memberships(text: str, before: str, after: str) -> str:
    """Stored memberships of a row whose id was `before` and is `after` now. A damaged text is returned as it is."""
    try:
        entries = orjson.loads(text or "[]")
        for entry in entries:
            if len(entry) < 5:  # an oversized op has no object id
                object_id = entry[3] if len(entry) > 3 else before
                entry[3:] = [] if object_id == after else [object_id]
    except (ValueError, TypeError, IndexError):
        return text
    return orjson.dumps(entries).decode() if entries else ""


def expected_memberships(puts: Sequence[Put], keys: StoreKeys) -> set[BucketMembership]:
    """The memberships of a row with these `puts`."""
    last = {(keys.bucket(put.bucket), put.table, put.id): put.data for put in fitting(puts, keys)[0]}
    return {
        BucketMembership(bucket, keys.content(table, object_id, data), table, object_id)
        for (bucket, table, object_id), data in last.items()
    }


def fitting(puts: Sequence[Put], keys: StoreKeys) -> tuple[Sequence[Put], Sequence[OversizedOp]]:
    """The `puts` that can become ops, and the ops that would be too large."""
    if all(len(put.data) <= SURELY_AN_OP for put in puts):
        return puts, ()
    sized = [(put, len(orjson.dumps(put.data))) for put in puts]
    return (
        [put for put, size in sized if size <= OP_LIMIT],
        [OversizedOp(keys.bucket(put.bucket), put.table, size) for put, size in sized if size > OP_LIMIT],
    )


def _membership_affixes(bucket: int, table: str, other_id: str | None = None) -> tuple[str, str]:
    """What the stored text of a row's only membership has before and after its digest. `other_id` is the object id if
    that is not the row id."""
    last = "" if other_id is None else f",{orjson.dumps(other_id).decode()}"
    return f"[[{bucket},", f",{type_json(table)}{last}]]"


def _is_only_membership(text: str, head: str, tail: str) -> bool:
    """Whether stored memberships are one, made of these affixes and some digest."""
    return text.startswith(head) and text.endswith(tail) and text[len(head) : -len(tail)].isdecimal()


# rows to ops


class RowKeys(NamedTuple):
    """What the subkeys of a row depend on. `origin` is the `subkey_origin` of a row that had another id before."""

    table_id: int
    row_id: str
    store: StoreKeys
    origin: str | None = None

    def subkey(self, object_id: str) -> str:
        return row_subkey(self.origin, self.table_id, self.row_id, object_id, self.store)


def row_ops(
    previous: Sequence[BucketMembership], puts: Sequence[Put], keys: RowKeys
) -> tuple[list[DraftOp], list[BucketMembership]]:
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
        entry = (keys.store.bucket(put.bucket), put.table, put.id)
        after[entry] = digest
        if before.get(entry) != digest:
            body = body or put_body(put.table, put.id, keys.subkey(put.id), put.data, digest)
            ops.append(DraftOp(entry[0], put_checksum(digest), body))
    for bucket, table, object_id in before:
        if (bucket, table, object_id) not in after:
            subkey = keys.subkey(object_id)
            checksum = keys.store.removal(table, object_id, subkey)
            ops.append(DraftOp(bucket, checksum, remove_body(table, object_id, subkey, checksum)))
    return ops, [BucketMembership(bucket, digest, table, oid) for (bucket, table, oid), digest in after.items()]


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

    def at(self, now: int) -> TableTransform:
        """The same at a time, in microseconds since 1970 UTC."""
        return replace(self, program=self.program.at(now))

    def knowing(self, found: JoinedRows) -> TableTransform:
        """The same with the rows that joins find."""
        return replace(self, program=self.program.knowing(found))

    def join_keys(self, cells: Sequence[str | None], row_id: str) -> list[str]:
        """The keys of lookups, by which joins find other rows of a row."""
        return self.program.join_keys(self.convert(cells), row_id)

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
    ) -> TransformedRow:
        """Evaluate a row, and add the ops that change its entries from stored memberships, and the buckets."""
        if self.plain is not None and origin is None:
            memberships = self.plain(cells, row_id, previous, ops, buckets)
            if memberships is not None:
                return _new_row(TransformedRow, (memberships, (), (), None))
        puts, lookups, errors, flip = self.program.evaluate(self.convert(cells), row_id)
        return TransformedRow(self.move(previous, origin, row_id, puts, ops, buckets), lookups, errors, flip)

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
        puts, oversized = fitting(puts, self.keys)
        for put in puts:
            buckets[put.bucket] = Bucket(self.keys.bucket(put.bucket), put.bucket, self.definitions[put.definition])
        keys = RowKeys(self.table_id, row_id, self.keys, origin)
        drafts, memberships = row_ops(decode_memberships(previous, row_id), puts, keys)
        ops += drafts
        return encode_memberships(memberships, row_id, oversized)

    def _move_in_place(self, previous: str, row_id: str, put: Put, ops: list[DraftOp], buckets: Buckets) -> str | None:
        """`move` without decoding memberships, for a row that was in no bucket, or only as the same object in the
        bucket of `put`. None for all others."""
        position, name, table, object_id, data = put
        bucket = self.keys.bucket(name)
        head, tail = _membership_affixes(bucket, table, None if object_id == row_id else object_id)
        if len(data) > SURELY_AN_OP or (previous and not _is_only_membership(previous, head, tail)):
            return None
        digest = self.keys.content(table, object_id, data)
        memberships = f"{head}{digest}{tail}"
        if memberships != previous:
            buckets[name] = Bucket(bucket, name, self.definitions[position])
            subkey = row_subkey(None, self.table_id, row_id, object_id, self.keys)
            body = put_body(table, object_id, subkey, data, digest)
            ops.append(draft_op(DraftOp, (bucket, put_checksum(digest), body)))
        return memberships


# rows of columns alone

_KnownBucket = tuple[int, str, str, str, Bucket]
"""A bucket's key, its name, what memberships in it begin and end with, and the bucket."""


class _KnownBuckets(dict[tuple[Value, ...], _KnownBucket]):
    """The bucket by the values of its parameters, of which equal ones name the same. Remembers some, since there is one
    of these for each table. `buckets[params]` is None, and nothing is remembered, where there is no bucket."""

    def __init__(self, entry: PlainEntry, keys: StoreKeys, definition: str) -> None:
        super().__init__()
        self._keys = keys
        self._entry = entry
        self._definition = definition

    def __missing__(self, params: tuple[Value, ...]) -> _KnownBucket | None:
        name = key_text(self._entry.name, params)
        if name is None:
            return None
        bucket = Bucket(self._keys.bucket(name), name, self._definition)
        known = (bucket.key, name, *_membership_affixes(bucket.key, self._entry.table), bucket)
        if len(name) <= _LONGEST_KNOWN:
            if len(self) >= _KNOWN_BUCKETS:
                self.clear()
            self[params] = known
        return known


def plain_write(
    entry: PlainEntry,
    converters: Sequence[Callable[[str], Value] | None],
    table_id: int,
    keys: StoreKeys,
    definition: str,
) -> PlainWrite:
    """The code for the rows of a table: `converters` are those of its columns, `definition` is the name of the bucket
    definition that the entry belongs to."""
    values = [f"c{number}" if function is None else f"v{number}" for number, function in enumerate(converters)]
    start, middle = put_affixes(entry.table, str(table_id))
    scope: dict[str, object] = {f"f{number}": function for number, function in enumerate(converters)}
    scope |= {
        "as_text": as_text,
        "checksum_of": put_checksum,
        "digest_of": keys.content,
        "draft": draft_op,
        "dumps": orjson.dumps,
        "is_only": _is_only_membership,
        "known_buckets": _KnownBuckets(entry, keys, definition),
        "middle": middle,
        "most": SURELY_AN_OP,
        "start": start,
        "table": entry.table,
        "DraftOp": DraftOp,
    }
    exec("\n".join(_code(entry, values)), scope)  # noqa: S102  # built from numbers and quoted names alone
    return cast(PlainWrite, scope["write"])


def _code(entry: PlainEntry, values: Sequence[str]) -> list[str]:
    named = ", ".join(f"{name!r}: {values[position]}" for name, position in entry.columns.items())
    params = "".join(f"{values[position]}, " for position in entry.params)
    has_other_id = ""  # the condition that a row's object id is not its row id
    if "id" in entry.columns:
        value = values[entry.columns["id"]]
        text = value if value.startswith("c") else f"as_text({value})"
        has_other_id = f" or ({value} is not None and {text} != row_id)"
    return [
        "def write(cells, row_id, previous, ops, buckets):",
        " try:",
        f"  [{', '.join(f'c{number}' for number in range(len(values)))}] = cells",
        *(
            f"  {value} = None if c{number} is None else f{number}(c{number})"
            for number, value in enumerate(values)
            if value != f"c{number}"
        ),
        f"  known = known_buckets[({params})]",
        f"  if known is None{has_other_id}: return None",
        f"  data = dumps({{{named}}}).decode()",
        " except (ValueError, KeyError, TypeError):",
        "  return None",
        " if len(data) > most: return None",
        " key, name, head, tail, bucket = known",
        " digest = digest_of(table, row_id, data)",
        " memberships = f'{head}{digest}{tail}'",
        " if previous == memberships: return memberships",
        " if previous and not is_only(previous, head, tail): return None",
        " buckets[name] = bucket",
        " checksum = checksum_of(digest)",
        """ body = f'{start}{dumps(row_id).decode()},"checksum":{checksum}{middle}{dumps(data).decode()}}}'""",
        " ops.append(draft(DraftOp, (key, checksum, body)))",
        " return memberships",
    ]
