"""Compaction of large buckets on Spark: each of the shares that `upkeep` makes is a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.compaction import Share, Summary, compact_share
from headwater.pipeline.engine import Engine, persistently


@dataclass(frozen=True, slots=True)
class ShareTask:
    """Compacts one share."""

    share: Share

    def run(self, job: None, number: int, attempt: str) -> Summary:
        return compact_share(self.share)


class SparkCompaction:
    """See `compaction.work.Elsewhere`. Spark repeats a failed task; if Spark itself ended, all shares are repeated.
    Repeating a share is safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __call__(self, shares: Sequence[Share]) -> list[Summary]:
        return persistently(lambda: self._compact(shares))

    def _compact(self, shares: Sequence[Share]) -> list[Summary]:
        with self._engine.run(None, "compaction") as run:
            return run.tasks([ShareTask(share) for share in shares])
