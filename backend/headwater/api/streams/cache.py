"""An in-memory cache of chunks, shared by all sync streams of a process.

It keeps chunks as they are sent, in the form that a client accepts, such as a compressed line. Forms that no client
uses cost nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from cachetools import LRUCache

from headwater.api.streams.encoding import EncodedPiece
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import BucketMarks, Chunk, StoreReader

ENTRY_BYTES = 600
"""Memory that an entry takes besides its content."""


class Form(Hashable, Protocol):
    """A way to write chunks. Equal forms write a chunk identically, so that one client's result serves all."""

    def write(self, bucket: str, after: OpId, chunk: Chunk) -> EncodedPiece | bytes: ...


@dataclass(frozen=True, slots=True)
class Written:
    """A chunk as a form wrote it; None for an empty one. `chunk` says what it covers, and holds no ops."""

    chunk: Chunk
    content: EncodedPiece | bytes | None


class _Key(NamedTuple):
    """What determines a cached chunk.

    Compaction rewrites history, and a CLEAR restarts it; either moves a mark of the bucket. Marks are part of the key
    and are read at every use in the same view of the store as the chunk, so an entry from before a compaction is never
    found after it, nor the other way round. `end` is the last op of a chunk that ends with its checkpoint or bucket,
    and None for one that was cut because it was full: that one is the same under every later checkpoint.
    """

    form: Hashable
    bucket: str
    after: OpId
    clear_op: OpId
    compacted_op: OpId
    end: OpId | None


class ChunkCache:
    """A cache on top of a reader, which the caller closes. Keeps at most `capacity` bytes, evicting the least
    recently used; 0 keeps nothing. Safe to call from several threads: concurrent requests for the same chunk read it
    once."""

    def __init__(self, reader: StoreReader, capacity: int) -> None:
        self.reader = reader
        self._lock = threading.Lock()
        self._kept: LRUCache[_Key, Written] = LRUCache(capacity, _size)
        self._reading: dict[_Key, threading.Lock] = {}

    @property
    def kept_bytes(self) -> float:
        return self._kept.currsize

    def written(self, form: Form, bucket: str, after: OpId, upto: OpId, marks: BucketMarks | None) -> Written:
        """Like `chunk`, in the requested form. Call it within a snapshot, with the marks seen in that snapshot; None
        for a bucket that does not exist, of which nothing is read."""
        nothing = Written(Chunk(b"", 0, after, more=False), None)
        if marks is None:
            return nothing
        if upto < marks.clear_op or upto < marks.compacted_op:
            return self._read(form, bucket, after, upto)  # what such a checkpoint sees may be going away
        if after >= marks.last_op:
            return nothing
        history = (bucket, after, marks.clear_op, marks.compacted_op)
        cut, ended = _Key(form, *history, None), _Key(form, *history, min(upto, marks.last_op))
        return self._find(cut, ended, upto) or self._read_once(form, cut, ended, upto)

    def _read_once(self, form: Form, cut: _Key, ended: _Key, upto: OpId) -> Written:
        """Read and keep, after waiting for a thread that reads the same."""
        mine = threading.Lock()
        with mine:
            with self._lock:
                other = self._reading.setdefault(ended, mine)
            if other is mine:
                try:
                    written = self._read(form, ended.bucket, ended.after, upto)
                    self._keep(cut if written.chunk.more else ended, written)
                    return written
                finally:
                    with self._lock:
                        del self._reading[ended]
        with other:
            found = self._find(cut, ended, upto)
        return found or self._read(form, ended.bucket, ended.after, upto)

    def _read(self, form: Form, bucket: str, after: OpId, upto: OpId) -> Written:
        chunk = self.reader.chunk(bucket, after, upto)
        covers = Chunk(b"", chunk.size, chunk.next_after, chunk.more, chunk.overtaken)
        return Written(covers, form.write(bucket, after, chunk) if chunk.size else None)

    def _find(self, cut: _Key, ended: _Key, upto: OpId) -> Written | None:
        with self._lock:
            for key in (cut, ended):
                found = self._kept.get(key)
                if found is not None and found.chunk.next_after <= upto:
                    return found
        return None

    def _keep(self, key: _Key, written: Written) -> None:
        if _size(written) > self._kept.maxsize:
            return
        with self._lock:
            self._kept[key] = written

    def close(self) -> None:
        with self._lock:
            self._kept.clear()


def _size(written: Written) -> int:
    return ENTRY_BYTES + (len(written.content) if written.content is not None else 0)
