"""What tasks of bulk jobs write, until the store takes it over (see `storage.sql.bulk`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple, Protocol

from headwater.oplog.keys import in_memory
from headwater.oplog.transform import Bucket, DraftOp
from headwater.storage.contract.parts import CurrentRow, StagedPart
from headwater.storage.shared.segments import SegmentPacker
from headwater_rules.results import LookupEntry

_NO_FLIPS: Mapping[str, int] = MappingProxyType({})
_SEGMENTS_BYTES = 8 << 20  # before they are stored together

Segment = tuple[int, int, int, bytes]
"""Of a part: bucket, number of ops, sum of their checksums, compressed bodies."""


class PageSize(NamedTuple):
    """The number of rows and ops in a page of a part."""

    rows: int
    ops: int


class PartStorage(Protocol):
    """Where a database keeps a part. Errors are its driver's, except within `errors`."""

    def errors(self) -> AbstractContextManager[None]: ...

    def put_rows(self, page: int, rows: Sequence[CurrentRow]) -> None: ...

    def put_lookups(self, page: int, lookups: Sequence[tuple[str, LookupEntry]]) -> None: ...

    def put_flips(self, page: int, flips: Mapping[str, int]) -> None: ...

    def put_buckets(self, buckets: Sequence[Bucket]) -> None: ...

    def put_segments(self, page: int, segments: Sequence[Segment]) -> None: ...

    def finish(self, sizes: Sequence[PageSize], *, paged: bool) -> None:
        """Complete the part. With `paged`, its pages are taken over one by one."""

    def close(self) -> None:
        """Delete the part unless it was finished."""


class PartWriter:
    """Where a task of a bulk job writes its results. A context manager: leaving it without `finish` discards
    everything."""

    def __init__(self, storage: PartStorage, part: StagedPart) -> None:
        self._storage = storage
        self._part = part
        self._packer = SegmentPacker(self._keep)
        self._segments: list[Segment] = []
        self._segment_bytes = 0
        self._named: set[int] = set()
        self._ended: list[PageSize] = []
        self._rows = self._ops = 0  # of the page that has not ended

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._storage.close()

    def write(
        self,
        rows: Sequence[CurrentRow],
        lookups: Sequence[tuple[str, LookupEntry]],
        ops: Sequence[DraftOp],
        buckets: Mapping[str, Bucket],
        flips: Mapping[str, int] = _NO_FLIPS,
    ) -> None:
        """Add a batch. `lookups` pairs row ids with entries; `buckets` has every bucket of the ops, by name; `flips`
        says when rows, by id, have to be evaluated again, in microseconds since 1970. In a part of additions, a row's
        `members` are only the ones to add and its `line` is empty."""
        page = len(self._ended)
        with self._storage.errors():
            if rows:
                self._storage.put_rows(page, rows)
            if lookups:
                self._storage.put_lookups(page, lookups)
            if flips:
                self._storage.put_flips(page, flips)
            if new := _unseen(buckets, self._named):
                self._storage.put_buckets(new)
            self._packer.add(ops)
        self._rows += len(rows)
        self._ops += len(ops)

    def end_page(self) -> None:
        """End a page: what was written since the last one can be taken over on its own."""
        with self._storage.errors():
            self._packer.seal_all()
            self._send_segments()
        self._ended.append(PageSize(self._rows, self._ops))
        self._rows = self._ops = 0

    def finish(self) -> StagedPart:
        """Complete the part, so that the store can take it over."""
        pages = len(self._ended)
        if not pages:
            self.end_page()
        with self._storage.errors():
            self._storage.finish(self._ended, paged=pages > 0)
        rows, ops = map(sum, zip(*self._ended, strict=True))
        return replace(self._part, rows=rows, ops=ops, pages=pages)

    def _keep(self, bucket: int, size: int, checksum: int, bodies: bytes) -> None:
        self._segments.append((bucket, size, checksum, bodies))
        self._segment_bytes += len(bodies)
        if self._segment_bytes > _SEGMENTS_BYTES:
            self._send_segments()

    def _send_segments(self) -> None:
        if self._segments:
            self._storage.put_segments(len(self._ended), self._segments)
        self._segments, self._segment_bytes = [], 0


def _unseen(buckets: Mapping[str, Bucket], seen: set[int]) -> list[Bucket]:
    """Those of some buckets, by name, that are not in `seen` yet, which gets them. It holds digests, since names may be
    long."""
    by_digest = {in_memory(name.encode()): bucket for name, bucket in buckets.items()}
    found = [bucket for digest, bucket in by_digest.items() if digest not in seen]
    seen.update(by_digest)
    return found
