"""`headwater compact`: compacts histories now, without waiting until they are due; on Spark if they are large."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import click

from headwater.bulk.contract import EngineLostError
from headwater.cli.config import ServiceConfig
from headwater.cli.existing_store import existing_store
from headwater.compaction.compactor import LARGE_OPS, CompactionPass, Share, ShareTask, Summary, selected, shared
from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.contract.compaction import BucketState
from headwater.storage.contract.store import LeaseHeldError
from headwater.storage.open import open_store
from headwater.storage.shared.compaction import CompactionPolicy
from headwater.storage.sql.compaction import CompactionStore
from headwater.storage.sql.leases import process_owner

if TYPE_CHECKING:
    from headwater.pipeline.engine import TaskEngine

_log = logging.getLogger(__name__)

_TRIES = 3  # a person is waiting
_LINE_SECONDS = 5.0
_LEASE_WAIT_SECONDS = 300.0


class SparkCompaction:
    """See `compaction.compactor.ShareRunner`. Spark repeats a failed task; if Spark itself ended, all shares are
    repeated, three times at most. Repeating a share is safe."""

    def __init__(self, engine: TaskEngine) -> None:
        self._engine = engine

    def __call__(self, shares: Sequence[Share]) -> list[Summary]:
        for _ in range(_TRIES - 1):
            try:
                return self._compact(shares)
            except EngineLostError as error:
                _log.warning("%s", error)
        return self._compact(shares)

    def _compact(self, shares: Sequence[Share]) -> list[Summary]:
        with self._engine.run(None, "compaction") as run:
            return run.tasks([ShareTask(share) for share in shares])


def run(
    config: ServiceConfig,
    stop: threading.Event,
    *,
    bucket: str | None,
    definition: str | None,
    budget: int | None,
    spark: bool = False,
) -> None:
    """Compact the selected buckets, on Spark if they are large or `spark` is set, and print a summary. Without a
    budget, rows are put again only where that saves devices more than it costs them. Raises HW_8301, and
    CompactionStoppedError once `stop` is set."""
    policy = CompactionPolicy() if budget is None else CompactionPolicy(budget=budget, price=math.inf, least=1)
    with existing_store(config) as store, closing(open_store(store.address).open_compaction()) as compaction:
        buckets = selected(compaction.buckets(OpId(0)), bucket, definition)
        if not buckets and (bucket or definition):
            what = f"the store has no {f'bucket {bucket}' if bucket else f'bucket definition {definition}'}"
            raise HeadwaterError(what, str(store.address), "see `headwater store stats`", code="HW_8301")
        with _work(compaction, stop) as work:
            if spark or sum(bucket.count for bucket in buckets) >= LARGE_OPS:
                summary = _on_spark(config, work, compaction, buckets, policy)
            else:
                summary = _compact(work, compaction, buckets, policy)
    click.echo(_summary_text(summary))


def _work(compaction: CompactionStore, stop: threading.Event) -> CompactionPass:
    """Take the compaction lease, waiting for background compaction, which does not hold it for long."""
    deadline = time.monotonic() + _LEASE_WAIT_SECONDS
    announced = False
    while True:
        try:
            return CompactionPass(compaction, process_owner(), stop.wait)
        except LeaseHeldError:
            if time.monotonic() > deadline:
                raise
            if not announced:
                click.echo("waiting for the service's own compaction to finish", err=True)
            announced = True
            stop.wait(0.5)


def _compact(
    work: CompactionPass, compaction: CompactionStore, buckets: list[BucketState], policy: CompactionPolicy
) -> Summary:
    summary = Summary()
    said_at = time.monotonic()
    for number, bucket in enumerate(buckets, 1):
        result = work.bucket(bucket, compaction.checkpoint(), policy, finish=True)
        summary.count(result)
        if time.monotonic() - said_at >= _LINE_SECONDS:
            said_at = time.monotonic()
            click.echo(f"{number:,} of {len(buckets):,} buckets, {summary.before:,} ops read", err=True)
    work.prune()
    return summary


def _on_spark(
    config: ServiceConfig,
    work: CompactionPass,
    compaction: CompactionStore,
    buckets: list[BucketState],
    policy: CompactionPolicy,
) -> Summary:
    from headwater.pipeline.spark.engine import SparkEngine
    from headwater.pipeline.spark.session import Spark

    spark = Spark(config.spark)
    summary = Summary()
    try:
        shares = shared(work, config.storage, buckets, compaction.checkpoint(), policy, finish=True)
        click.echo(f"{len(buckets):,} buckets in {len(shares):,} Spark tasks", err=True)
        for done in SparkCompaction(SparkEngine(spark))(shares):
            summary.add(done)
        work.prune()
    finally:
        spark.stop()
    return summary


def _summary_text(summary: Summary) -> str:
    text = (
        f"compacted {summary.buckets:,} buckets: {summary.before:,} ops became {summary.after:,},"
        f" for {summary.live:,} rows"
    )
    if summary.reput:
        text += (
            f"\nput {summary.reput:,} rows ({math.ceil(summary.reput_bytes / 1024):,} KiB) again,"
            " which devices download once more"
        )
    if summary.skipped:
        text += f"\nskipped {summary.skipped:,} buckets that changed meanwhile; compact them again"
    return text
