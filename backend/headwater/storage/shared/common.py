"""What back ends share: limits, the first op id, owners of leases, layouts as text."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from headwater.oplog.change import Column, Generated, Relation, ReplicaIdentity
from headwater.oplog.keys import in_memory
from headwater.oplog.transform import Bucket

CHUNK_OPS = 1000
CHUNK_BYTES = 1 << 20

SEGMENT_OPS = 999  # with the CLEAR that begins a bucket, a segment fills one chunk
SEGMENT_BYTES = 1 << 20

NAMEABLE = 2000
"""Above this number of touched buckets or lookups, a flush records none of their names, which means anything."""

KEPT_FLUSHES = 4000

_EPOCH = 1_735_689_600  # 2025-01-01, in seconds since 1970
_OPS_A_SECOND = 1 << 20


def op_floor(now: float) -> int:
    """The lowest op id that a store created or opened at `now` (seconds since 1970) may give out.

    All ids that were given out before `now` are below it, unless the store wrote more than a million ops a second all
    the time. A client that is ahead of a restored or rebuilt store therefore still gets everything. Stays below 2^53
    until 2297.
    """
    return int((now - _EPOCH) * _OPS_A_SECOND)


def life_of(secret: bytes) -> str:
    """Names the life of a store: its op ids are those of no other one."""
    return hashlib.blake2b(secret, digest_size=8).hexdigest()


@dataclass(slots=True)
class BucketSum:
    """What a flush adds to a bucket."""

    checksum: int = 0
    count: int = 0
    last_op: int = 0


_KNOWN_BUCKETS, _LONGEST_KNOWN = 1 << 16, 500


class KnownBuckets:
    """Names of buckets that exist, by key, so that most appends need no query. Shared by all flushes of a process, and
    limited in number."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self._retired = 0

    def check(self, retired: int) -> None:
        """Forget all names if buckets were removed since: the store's counter `retired` differs. Called under the
        store's write lock."""
        if retired != self._retired:
            self.names.clear()
            self._retired = retired

    def add(self, names: Mapping[int, str]) -> None:
        """Remember buckets that were committed."""
        if len(self.names) + len(names) > _KNOWN_BUCKETS:
            self.names.clear()
        self.names.update((key, name) for key, name in names.items() if len(name) <= _LONGEST_KNOWN)


class Naming:
    """The buckets that a flush adds ops to, by key. `fresh` are those that are not in `known` yet."""

    def __init__(self, known: KnownBuckets) -> None:
        self._known = known
        self.fresh: dict[int, str] = {}

    def missing(self, keys: set[int]) -> set[int]:
        """Those of the keys that the process has not seen."""
        known, fresh = self._known.names, self.fresh
        return {key for key in keys if key not in known and key not in fresh}  # `-` would go through all of `known`

    def taken(
        self, buckets: Iterable[Bucket], held: Mapping[int, str], retired: Collection[int], moved: Mapping[str, int]
    ) -> list[Bucket]:
        """The buckets whose key belongs to another one, by what is known, by what the store says of keys that the
        process has not seen (`held`; `retired`, where what was in the bucket is still being removed) and of names that
        were `moved`, or by an earlier one of `buckets`."""
        found = []
        names: dict[int, str] = {}
        for bucket in buckets:
            key, name = bucket.key, bucket.name
            held_by = self.fresh.get(key) or self._known.names.get(key) or held.get(key) or names.setdefault(key, name)
            if held_by != name or key in retired or moved.get(name, key) != key:
                found.append(bucket)
        return found


def unseen(buckets: Mapping[str, Bucket], seen: set[int]) -> list[Bucket]:
    """Those of some buckets, by name, that are not in `seen` yet, which gets them. It holds digests, since names may be
    long."""
    by_digest = {in_memory(name.encode()): bucket for name, bucket in buckets.items()}
    found = [bucket for digest, bucket in by_digest.items() if digest not in seen]
    seen.update(by_digest)
    return found


def union_of_names(texts: Iterable[str | None]) -> frozenset[str] | None:
    """The names that several flushes touched, each given as a JSON list. None if any of them is None, which means too
    many to name."""
    names: set[str] = set()
    for text in texts:
        if text is None:
            return None
        names.update(orjson.loads(text))
    return frozenset(names)


def process_owner() -> str:
    """Identifies this process as the owner of a lease."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_gone(owner: str) -> bool:
    """Whether the owner is a process of this machine that has ended. False when that can't be determined."""
    host, _, pid = owner.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def encode_layouts(layouts: Sequence[Relation]) -> str:
    """Relations as JSON."""
    return orjson.dumps(
        [
            [
                r.oid,
                r.schema,
                r.name,
                r.identity.value,
                [_encoded(column) for column in r.columns],
                *([True] if r.by_leaf else []),
            ]
            for r in layouts
        ]
    ).decode()


def decode_layouts(text: str) -> tuple[Relation, ...]:
    """The inverse of `encode_layouts`."""
    return tuple(
        Relation(oid, schema, name, ReplicaIdentity(identity), tuple(_decoded(*column) for column in columns), *by_leaf)
        for oid, schema, name, identity, columns, *by_leaf in orjson.loads(text)
    )


def _encoded(column: Column) -> list[object]:
    plain = [column.name, column.type_oid, column.type_modifier, column.key]
    return plain if column.generated is None else [*plain, column.generated.expression, column.generated.inputs]


def _decoded(
    name: str, type_oid: int, type_modifier: int, key: bool, expression: str | None = None, inputs: Sequence[str] = ()
) -> Column:
    generated = None if expression is None else Generated(expression, tuple(inputs))
    return Column(name, type_oid, type_modifier, key, generated)
