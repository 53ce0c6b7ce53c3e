"""Packs ops into segments: compressed runs of one bucket's bodies, each small enough for a chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headwater.oplog.transform import DraftOp
from headwater.storage.shared.common import SEGMENT_BYTES, SEGMENT_OPS
from headwater.storage.shared.packing import compressor

_BUFFERED_BYTES = 64 << 20

Keep = Callable[[int, int, int, bytes], None]
"""Stores a finished segment: bucket, number of ops, sum of their checksums, compressed bodies."""


class _Run:
    """Ops of one bucket that are not yet a segment."""

    __slots__ = ("bodies", "bytes", "checksum")

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.bytes = 0
        self.checksum = 0


class SegmentPacker:
    """Collects ops by bucket and passes segments to `keep`, in the order of each bucket's ops."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._runs: dict[int, _Run] = {}
        self._buffered = 0
        # One compressor for all: making one costs more than a small segment
        self._compressor = compressor(level=1)

    def add(self, ops: Sequence[DraftOp]) -> None:
        runs = self._runs
        for bucket, checksum, body in ops:
            run = runs.get(bucket)
            if run is None:
                run = runs[bucket] = _Run()
            size = len(body)
            if run.bodies and run.bytes + size > SEGMENT_BYTES:
                self._seal(bucket, run)
            run.bodies.append(body)
            run.bytes += size
            run.checksum += checksum
            self._buffered += size
            if len(run.bodies) >= SEGMENT_OPS:
                self._seal(bucket, run)
        if self._buffered > _BUFFERED_BYTES:
            self.seal_all()

    def seal_all(self) -> None:
        """Make segments of all collected ops."""
        for bucket, run in self._runs.items():
            if run.bodies:
                self._seal(bucket, run)
        self._runs.clear()
        self._buffered = 0

    def _seal(self, bucket: int, run: _Run) -> None:
        blob = self._compressor.compress("\n".join(run.bodies).encode())
        self._keep(bucket, len(run.bodies), run.checksum & 0xFFFFFFFF, blob)
        self._buffered -= run.bytes
        run.bodies, run.bytes, run.checksum = [], 0, 0
