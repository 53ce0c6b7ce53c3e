"""`headwater replicate`: composes the replicators of a process, one for each source, from their parts."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from headwater.cli.compact import SparkCompaction
from headwater.cli.config import ServiceConfig
from headwater.cli.progress import BulkProgressDisplay
from headwater.cli.startup import own_rules, rules_that_fit, wait_for_source, wait_for_sources, warn_of_same_databases
from headwater.cli.watching import traces_of
from headwater.compaction.compactor import Compactor
from headwater.errors import HeadwaterError, machine_errors
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from headwater.replication.meters import Figures
from headwater.replication.monitor import report_stopped
from headwater.replication.own_slot import slot_of
from headwater.replication.removal import remove_unnamed
from headwater.replication.replicator import Replicator
from headwater.replication.versions import ConfigFile
from headwater.source.connect import SourceSettings
from headwater.storage.open import open_store
from headwater.storage.sql.leases import process_owner
from headwater.telemetry.log_facts import process_facts, source_name
from headwater_rules.plan import TablePattern

_log = logging.getLogger(__name__)

_ORDERLY_SECONDS = 3.0
_TRIED_AGAIN_SECONDS = 30.0
_SWITCH_SECONDS = 0.0005
"""How long one source may keep the others from running, instead of Python's 5 ms: each return from a call that leaves
Python, of which a commit has dozens, may wait that long."""


def run(
    config: ServiceConfig,
    stop: threading.Event,
    *,
    sources: Sequence[SourceSettings] = (),
    source_timeout: float = 30.0,
    take_slot: bool = False,
    unified: bool = False,
) -> None:
    """Follow these sources, by default all of them, until `stop` is set. Waits up to `source_timeout` seconds for one
    of them at the start, for ever if 0. `take_slot` is described at `Replicator`. With `unified`, the endpoint beside
    it serves its metrics."""
    # Batches are large, short-lived and free of cycles: collecting every 700 objects takes a sixth of the time
    gc.set_threshold(100_000, 50, 100)
    sources = sources or config.chosen(())
    rules = own_rules(config) if config.sync_config is not None else None
    tables: Sequence[TablePattern] = ()
    if rules is not None:
        tables = rules.compiled.plan.tables()
        for warning in rules.compiled.warnings:
            _log.warning("%s", warning)
        _warn_of_absent(tables, config.sources)
    with ExitStack() as stack:
        traces = stack.enter_context(traces_of(config))
        figures = {source.name: Figures() if traces is None else Figures(traces.flushed) for source in sources}
        wait_for_sources(sources, tables, stop, source_timeout)
        if stop.is_set():
            return
        warn_of_same_databases(sources)
        names = [source.name for source in sources]
        rules = None if rules is None else rules_that_fit(config, rules, names)
        if config.prometheus_port is not None and not unified:
            from headwater.cli.metrics import replicator_page

            stack.enter_context(replicator_page(config, config.prometheus_port, figures))
        file = None if rules is None else ConfigFile(rules.yaml, names)
        _Replication(config, sources, file, figures, take_slot).run(stop)


def _warn_of_absent(tables: Sequence[TablePattern], sources: Sequence[SourceSettings]) -> None:
    """Log which sources the rules name, and the configuration does not."""
    absent = [table.tag for table in tables if not any(table.of(source.tag) for source in sources)]
    for tag in dict.fromkeys(absent):
        _log.warning(
            "the sync config names tables of source %s, which is not configured, so devices get no rows of them: add a "
            "connection with this tag to replication.connections, or remove the tables from the sync config",
            tag,
        )


@dataclass(frozen=True, slots=True)
class _Replication:
    """The replicators of a process, one for each of `sources`, which share Spark and a compactor."""

    config: ServiceConfig
    sources: Sequence[SourceSettings]
    file: ConfigFile | None
    figures: Mapping[str, Figures]
    take_slot: bool

    def run(self, stop: threading.Event) -> None:
        """Follow all sources until `stop` is set. Raises errors of the only source that a person has to fix. Such an
        error of one of several stops this source alone, which is tried again."""
        store = open_store(self.config.storage)
        for source in self.sources:
            store.raise_if_published(source.publications)
        store.open_writer().close()  # created once, or upgraded
        several = len(self.sources) > 1
        spark = Spark(_shared_fairly(self.config.spark) if several else self.config.spark)
        done = threading.Event()
        threading.Thread(target=_cancel_when_stopped, args=(spark, stop, done), daemon=True).start()
        shares = SparkCompaction(SparkEngine(spark, "compaction" if several else None))
        compaction = Compactor(self.config.storage, process_owner(), run_shares=shares)
        compaction.start()
        leaving = threading.Thread(target=self._remove_unnamed, args=(stop,), daemon=True)
        leaving.start()
        try:
            if several:
                sys.setswitchinterval(_SWITCH_SECONDS)
                self._follow_all(spark, stop)
            else:
                self._follow(self.sources[0], SparkEngine(spark), spark.cancel, stop)
        finally:
            compaction.stop()
            spark.stop()
            done.set()

    def _remove_unnamed(self, stop: threading.Event) -> None:
        if self.config.unread_lists:
            return  # nobody knows which sources they have
        with closing(open_store(self.config.storage).open_writer()) as store:
            peers = {each.name: each.tag for each in self.config.sources}
            remove_unnamed(store, peers, process_owner(), stop, self.config.remove_after_seconds)

    def _follow_all(self, spark: Spark, stop: threading.Event) -> None:
        """Follow each source in a thread of its own. Raises the first error that is a fault of ours, once all have
        ended."""
        faults: list[BaseException] = []

        def follow(source: SourceSettings) -> None:
            source_name.set(source.name)
            try:
                self._follow_again(source, SparkEngine(spark, source.name), stop)
            except BaseException as error:  # noqa: BLE001 - raised below
                faults.append(error)
                stop.set()

        threads = [threading.Thread(target=follow, args=(source,), name=source.name) for source in self.sources]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)  # signals are handled in between
        if faults:
            raise faults[0]

    def _follow_again(self, source: SourceSettings, engine: SparkEngine, stop: threading.Event) -> None:
        """Follow one of several sources, again and again after errors that a person has to fix."""
        said = ""
        while not stop.is_set():
            followed = False
            try:
                wait_for_source(source, (), stop, 0)  # unreachable, the replicator waits for it
                if not stop.is_set():
                    followed = True
                    self._follow(source, engine, engine.cancel, stop)
            except HeadwaterError as error:
                if str(error) != said:
                    said = str(error)
                    _log.error("%s; the source is tried again every %.0f s", said, _TRIED_AGAIN_SECONDS)
                    if not followed:  # else the replicator has reported it
                        self._report(source, error)
                stop.wait(_TRIED_AGAIN_SECONDS)

    def _report(self, source: SourceSettings, error: HeadwaterError) -> None:
        try:
            with machine_errors(), closing(open_store(self.config.storage).open_writer()) as store:
                report_stopped(store, source.name, process_owner(), error)
        except HeadwaterError as unreported:
            _log.warning("the state can't be reported for now: %s", unreported)

    def _follow(
        self, source: SourceSettings, engine: SparkEngine, lost: Callable[[], None], stop: threading.Event
    ) -> None:
        with closing(open_store(self.config.storage).open_writer()) as store:
            if len(self.sources) == 1:
                process_facts.update(stream=slot_of(source, store))
            Replicator(
                source=source,
                store=store,
                file=self.file,
                peers={each.name: each.tag for each in self.config.sources},
                bulk=BulkJobs(engine),
                owner=process_owner(),
                progress=BulkProgressDisplay(),
                following=lambda: None,
                take_slot=self.take_slot,
                lost=lost,
                figures=self.figures[source.name],
            ).run(stop)


def _shared_fairly(settings: SparkSettings) -> SparkSettings:
    """Settings by which the jobs of several sources run side by side."""
    return replace(settings, conf={"spark.scheduler.mode": "FAIR", **settings.conf})


def _cancel_when_stopped(spark: Spark, stop: threading.Event, done: threading.Event) -> None:
    """Cancel Spark's work once `stop` is set, because the next start begins it again. Gives an idle Spark some seconds
    to end in order, then cancels repeatedly until everything has ended."""
    stop.wait()
    if done.wait(_ORDERLY_SECONDS):
        return
    while not done.wait(0.2):
        spark.cancel()
