"""What back ends share: limits, batches, the first op id."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import orjson

CHUNK_OPS = 1000
CHUNK_BYTES = 1 << 20

SEGMENT_OPS = 999  # with the CLEAR that begins a bucket, a segment fills one chunk
SEGMENT_BYTES = 1 << 20

NAMEABLE = 2000
"""Above this number of touched buckets or lookups, a flush records none of their names, which means anything."""

KEPT_FLUSHES = 4000

BATCH_BYTES = 16 << 20
"""Default size of a batch of rows in bytes, approximate."""

_T = TypeVar("_T")

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


def union_of_names(texts: Iterable[str | None]) -> frozenset[str] | None:
    """The names that several flushes touched, each given as a JSON list. None if any of them is None, which means too
    many to name."""
    names: set[str] = set()
    for text in texts:
        if text is None:
            return None
        names.update(orjson.loads(text))
    return frozenset(names)


def batched(items: Iterable[_T], size_of: Callable[[_T], int], count: int, batch_bytes: int) -> Iterator[list[_T]]:
    """Batches of at most `count` items and `batch_bytes`; a larger item comes alone."""
    batch, left = list[_T](), batch_bytes
    for item in items:
        size = size_of(item)
        if batch and (size > left or len(batch) >= count):
            yield batch
            batch, left = [], batch_bytes
        batch.append(item)
        left -= size
    if batch:
        yield batch


def sync_path(path: Path) -> None:
    """Make what a file holds, or the names in a directory, outlast the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def as_int(value: object) -> int:
    """The value of a result row, whose type the driver does not declare, as an int. Raises ValueError when it is not a
    whole number, which happens only in a damaged store."""
    return value if isinstance(value, int) else int(str(value))
