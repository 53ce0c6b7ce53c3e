"""`headwater replicate`: composes the replicator of one source from its parts."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack

from headwater.cli.compact import SparkCompaction
from headwater.cli.config import ServiceConfig
from headwater.cli.progress import BulkProgressDisplay
from headwater.cli.startup import own_rules, rules_that_fit, wait_for_source
from headwater.cli.watching import traces_of
from headwater.compaction.compactor import Compactor
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from headwater.replication.meters import Figures
from headwater.replication.own_slot import slot_of
from headwater.replication.replicator import Replicator
from headwater.replication.versions import ConfigFile
from headwater.storage.open import open_store
from headwater.storage.sql.leases import process_owner
from headwater.telemetry.log_facts import process_facts
from headwater_rules.plan import TablePattern

_log = logging.getLogger(__name__)

_ORDERLY_SECONDS = 3.0


def run(
    config: ServiceConfig,
    stop: threading.Event,
    *,
    source_timeout: float = 30.0,
    take_slot: bool = False,
    unified: bool = False,
) -> None:
    """Replicate until `stop` is set. Waits up to `source_timeout` seconds for an unreachable source at the start, for
    ever if 0. `take_slot` is described at `Replicator`. With `unified`, the endpoint beside it serves its metrics."""
    # Batches are large, short-lived and free of cycles: collecting every 700 objects takes a sixth of the time
    gc.set_threshold(100_000, 50, 100)
    rules = own_rules(config) if config.sync_config is not None else None
    tables: Sequence[TablePattern] = ()
    if rules is not None:
        tables = rules.compiled.plan.tables()
        for warning in rules.compiled.warnings:
            _log.warning("%s", warning)
    with ExitStack() as stack:
        traces = stack.enter_context(traces_of(config))
        figures = Figures() if traces is None else Figures(traces.flushed)
        wait_for_source(config.source(), tables, stop, source_timeout)
        if stop.is_set():
            return
        rules = None if rules is None else rules_that_fit(config, rules)
        if config.prometheus_port is not None and not unified:
            from headwater.cli.metrics import replicator_page

            stack.enter_context(replicator_page(config, config.prometheus_port, figures))
        _replicate(config, rules.yaml if rules is not None else None, figures, stop, take_slot=take_slot)


def _replicate(
    config: ServiceConfig, yaml: str | None, figures: Figures, stop: threading.Event, *, take_slot: bool
) -> None:
    backend = open_store(config.storage)
    backend.raise_if_published(config.source().publications)
    store = backend.open_writer()
    process_facts.update(stream=slot_of(config.source(), store))
    spark = Spark(config.spark)
    engine = SparkEngine(spark)
    done = threading.Event()
    threading.Thread(target=_cancel_when_stopped, args=(spark, stop, done), daemon=True).start()
    compaction = Compactor(config.storage, process_owner(), run_shares=SparkCompaction(engine))
    compaction.start()
    try:
        Replicator(
            source=config.source(),
            store=store,
            file=None if yaml is None else ConfigFile(yaml),
            peers={source.name: source.tag for source in config.sources},
            bulk=BulkJobs(engine),
            owner=process_owner(),
            progress=BulkProgressDisplay(),
            following=lambda: None,
            take_slot=take_slot,
            lost=spark.cancel,
            figures=figures,
        ).run(stop)
    finally:
        compaction.stop()
        spark.stop()
        done.set()
        store.close()


def _cancel_when_stopped(spark: Spark, stop: threading.Event, done: threading.Event) -> None:
    """Cancel Spark's work once `stop` is set, because the next start begins it again. Gives an idle Spark some seconds
    to end in order, then cancels repeatedly until everything has ended."""
    stop.wait()
    if done.wait(_ORDERLY_SECONDS):
        return
    while not done.wait(0.2):
        spark.cancel()
