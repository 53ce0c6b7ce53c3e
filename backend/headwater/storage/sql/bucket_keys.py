"""Buckets whose key is not the hash of their name, since another bucket had that key. How buckets are found by name:
`Dialect.named_buckets`."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NoReturn

from headwater.oplog.keys import StoreKeys
from headwater.oplog.transform import Bucket
from headwater.storage.contract.store import BucketKeyTakenError, Lease
from headwater.storage.sql.cursor import Cursor, Row

_HELD = "select name from {} where id = ?"
_HOLDS = "select 1 from buckets where id = ? and name = ?"
_IN_USE = " union all ".join(map(_HELD.format, ("buckets", "retired_buckets", "moved_buckets")))


def moved(db: Cursor) -> dict[str, int]:
    """Their keys, by name."""
    return dict(db.rows("select name, id from moved_buckets"))


def keys(db: Cursor, secret: bytes) -> StoreKeys:
    """What makes the keys of a store with this secret."""
    return StoreKeys(secret, moved(db))


class _TakenError(Exception):
    def __init__(self, buckets: Sequence[Bucket]) -> None:
        super().__init__()
        self.buckets = buckets


def refuse(taken: Iterable[Row]) -> None:
    """Within `moving`: end the transaction if there are buckets (id, name, definition) that have the key of another
    one."""
    buckets = [Bucket(*row) for row in taken]
    if buckets:
        raise _TakenError(buckets)


@contextmanager
def moving(db: Cursor, lease: Lease) -> Iterator[None]:
    """Around a transaction: `move` the buckets that were refused in it."""
    try:
        yield
    except _TakenError as error:
        taken = error.buckets
    else:
        return
    move(db, lease, taken)


def move(db: Cursor, lease: Lease, taken: Iterable[Bucket]) -> NoReturn:
    """Give these buckets, which have the key of another one, keys of their own: random ones, for a hash that clashes
    once may do so again. Not within a transaction. Raises BucketKeyTakenError."""
    buckets = list(taken)
    with db.transaction(lease):
        db.execute("update state set retired = retired")  # the lock under which buckets are created
        already = moved(db)
        for bucket in buckets:
            known = already.get(bucket.name, bucket.key) != bucket.key  # which the writer did not know
            if known or db.rows(_HOLDS, bucket.key, bucket.name):
                continue
            db.execute("delete from moved_buckets where name = ?", bucket.name)
            db.execute("insert into moved_buckets (id, name) values (?, ?)", _unused(db), bucket.name)
    raise BucketKeyTakenError(len(buckets))


def _unused(db: Cursor) -> int:
    while True:
        key = secrets.randbits(63)
        if not db.rows(_IN_USE, key, key, key):
            return key


# the buckets of a flush


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
        self.known = known
        self.fresh: dict[int, str] = {}

    def missing(self, keys: set[int]) -> set[int]:
        """Those of the keys that the process has not seen."""
        known, fresh = self.known.names, self.fresh
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
            held_by = self.fresh.get(key) or self.known.names.get(key) or held.get(key) or names.setdefault(key, name)
            if held_by != name or key in retired or moved.get(name, key) != key:
                found.append(bucket)
        return found
