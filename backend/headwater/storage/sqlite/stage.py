"""What a task of a bulk job writes: one file with rows, lookups and segments, taken over by the store later.

The file needs no durability and no index: an attempt that fails leaves a file that nobody names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import apsw
import zstandard

from headwater.oplog.transform import BucketName, DraftOp
from headwater.storage.contract import CurrentRow
from headwater_rules.results import LookupEntry

SEGMENT_OPS = 999  # with the CLEAR that begins a bucket, a segment fills one chunk
SEGMENT_BYTES = 1 << 20
_BUFFERED_BYTES = 64 << 20

_SCHEMA = """
pragma journal_mode = off;
pragma synchronous = off;
pragma locking_mode = exclusive;
create table rows (id integer primary key, row_id, layout, line, members, subkey);
create table lookups (key, row_id, output);
create table buckets (id integer primary key, name, definition);
create table segments (id integer primary key, bucket, size, checksum, bodies);
"""


class _Run:
    """Ops of one bucket that are not yet a segment."""

    __slots__ = ("bodies", "bytes", "checksum")

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.bytes = 0
        self.checksum = 0


class StageFile:
    """One attempt's result. Use as a context manager; `finish` gives the file its final name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unfinished = path.with_suffix(".unfinished")
        self._unfinished.unlink(missing_ok=True)
        self._db = apsw.Connection(str(self._unfinished))
        self._db.execute(_SCHEMA).fetchall()
        self._db.execute("begin")
        self._runs: dict[int, _Run] = {}
        self._named: set[int] = set()
        self._buffered = 0
        # One compressor for all: making one costs more than a small segment
        self._compressor = zstandard.ZstdCompressor(level=1)
        self.ops = 0

    def __enter__(self) -> StageFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()
        self._unfinished.unlink(missing_ok=True)

    def write(
        self,
        rows: Sequence[CurrentRow],
        lookups: Sequence[tuple[str, LookupEntry]],
        ops: Sequence[DraftOp],
        buckets: Mapping[int, BucketName],
    ) -> None:
        """Keep a batch. `lookups` pairs row ids with entries; `buckets` names every bucket of the ops."""
        self._db.executemany("insert into rows (row_id, layout, line, members, subkey) values (?, ?, ?, ?, ?)", rows)
        if lookups:
            self._db.executemany(
                "insert into lookups values (?, ?, ?)", [(entry.key, row_id, entry.output) for row_id, entry in lookups]
            )
        self._name(buckets)
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
        self.ops += len(ops)
        if self._buffered > _BUFFERED_BYTES:
            self._seal_all()

    def finish(self) -> None:
        """Write what is buffered and give the file its name."""
        self._seal_all()
        self._db.execute("commit")
        self._db.close()
        self._unfinished.rename(self._path)

    def _name(self, buckets: Mapping[int, BucketName]) -> None:
        new = [(key, *name) for key, name in buckets.items() if key not in self._named]
        self._db.executemany("insert or ignore into buckets values (?, ?, ?)", new)
        self._named.update(row[0] for row in new)

    def _seal_all(self) -> None:
        for bucket, run in self._runs.items():
            if run.bodies:
                self._seal(bucket, run)
        self._runs.clear()
        self._buffered = 0

    def _seal(self, bucket: int, run: _Run) -> None:
        blob = self._compressor.compress("\n".join(run.bodies).encode())
        self._db.execute(
            "insert into segments (bucket, size, checksum, bodies) values (?, ?, ?, ?)",
            (bucket, len(run.bodies), run.checksum & 0xFFFFFFFF, blob),
        )
        self._buffered -= run.bytes
        run.bodies, run.bytes, run.checksum = [], 0, 0
