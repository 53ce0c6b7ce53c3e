"""Buckets whose key is not the hash of their name, since another bucket had that key."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from headwater.oplog.keys import StoreKeys
from headwater.oplog.transform import Bucket
from headwater.storage.contract.store import BucketKeyTakenError, Lease
from headwater.storage.shared.control.database import ControlDb, Row
from headwater.storage.shared.values import as_int

_HELD = "select name from {} where id = ?"
_HOLDS = "select 1 from buckets where id = ? and name = ?"
_IN_USE = " union all ".join(map(_HELD.format, ("buckets", "retired_buckets", "moved_buckets")))


def moved(db: ControlDb) -> dict[str, int]:
    """Their keys, by name."""
    return {str(name): as_int(key) for name, key in db.rows("select name, id from moved_buckets")}


def keys(db: ControlDb, secret: bytes) -> StoreKeys:
    """What makes the keys of a store with this secret."""
    return StoreKeys(secret, moved(db))


class _TakenError(Exception):
    def __init__(self, buckets: Sequence[Bucket]) -> None:
        super().__init__()
        self.buckets = buckets


def refuse(taken: Iterable[Row]) -> None:
    """Within `moving`: end the transaction if there are buckets (id, name, definition) that have the key of another
    one."""
    buckets = [Bucket(as_int(key), str(name), str(definition)) for key, name, definition in taken]
    if buckets:
        raise _TakenError(buckets)


@contextmanager
def moving(db: ControlDb, lease: Lease) -> Iterator[None]:
    """Around a transaction: `move` the buckets that were refused in it."""
    try:
        yield
    except _TakenError as error:
        taken = error.buckets
    else:
        return
    move(db, lease, taken)


def move(db: ControlDb, lease: Lease, taken: Iterable[Bucket]) -> NoReturn:
    """Give these buckets, which have the key of another one, keys of their own: random ones, for a hash that clashes
    once may do so again. Not within a transaction. Raises BucketKeyTakenError."""
    buckets = list(taken)
    with db.holding(lease):
        db.rows("update state set retired = retired")  # the lock under which buckets are created
        already = moved(db)
        for bucket in buckets:
            known = already.get(bucket.name, bucket.key) != bucket.key  # which the writer did not know
            if known or db.rows(_HOLDS, bucket.key, bucket.name):
                continue
            db.rows("delete from moved_buckets where name = ?", bucket.name)
            db.rows("insert into moved_buckets (id, name) values (?, ?)", _unused(db), bucket.name)
    raise BucketKeyTakenError(len(buckets))


def _unused(db: ControlDb) -> int:
    while True:
        key = secrets.randbits(63)
        if not db.rows(_IN_USE, key, key, key):
            return key
