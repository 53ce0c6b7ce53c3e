"""Compaction of large buckets on Spark: what `upkeep` cuts into shares, each a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.pipeline.jobs import spark_errors
from headwater.pipeline.session import Spark
from headwater.pipeline.tasks import run_tasks
from headwater.upkeep import Share, Summary, compact_share


@dataclass(frozen=True, slots=True)
class ShareTask:
    """One share."""

    share: Share

    def run(self, job: None, number: int, attempt: str) -> Summary:
        return compact_share(self.share)


class SparkCompaction:
    """See `upkeep.Elsewhere`. A share whose task fails is tried again by Spark: its steps are good by themselves."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    def __call__(self, shares: Sequence[Share]) -> list[Summary]:
        session = self._spark.session()
        with spark_errors("compaction"):
            return run_tasks(session, None, [ShareTask(share) for share in shares], "compaction")
