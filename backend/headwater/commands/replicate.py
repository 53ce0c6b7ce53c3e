"""`headwater replicate`: the replicator of one source, composed from its parts."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType

from headwater.commands.progress import BulkProgressDisplay
from headwater.config import ServiceConfig
from headwater.errors import HeadwaterError, Kind
from headwater.pipeline.jobs import SparkBulk
from headwater.pipeline.session import Spark, SparkSettings
from headwater.replication.replicator import Replicator
from headwater.source.checks import check_source
from headwater.source.connect import connect
from headwater.storage.sqlite import SqliteStore
from headwater.storage.sqlite.lease import process_owner
from headwater_rules.compile import compile_config

_log = logging.getLogger(__name__)


def run(config: ServiceConfig, stop: threading.Event, *, source_timeout: float = 30.0) -> None:
    """Replicate until `stop` is set. A source that is unreachable at the start is given `source_timeout` seconds."""
    yaml = config.sync_text()
    compiled = compile_config(yaml)
    for warning in compiled.warnings:
        _log.warning("%s", warning)
    _wait_for_source(config, stop, source_timeout)
    store = SqliteStore(config.storage.path)
    spark = Spark(SparkSettings(config.spark.master, config.spark.conf))
    try:
        Replicator(
            source=config.source(),
            store=store,
            plan=compiled.plan,
            yaml=yaml,
            bulk=SparkBulk(spark),
            owner=process_owner(),
            progress=BulkProgressDisplay(),
            following=lambda: None,
        ).run(stop)
    finally:
        spark.stop()
        store.close()


def _wait_for_source(config: ServiceConfig, stop: threading.Event, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not stop.is_set():
        try:
            with connect(config.source(), application_name="headwater check") as conn:
                for finding in check_source(conn, config.source()):
                    _log.warning("%s", finding)
                return
        except HeadwaterError as error:
            if error.kind is not Kind.RETRY or time.monotonic() > deadline:
                raise
            _log.warning("%s", error)
            stop.wait(min(2.0, max(0.1, deadline - time.monotonic())))


def stop_on_signals(stop: threading.Event) -> None:
    """SIGTERM and SIGINT set `stop`; the work ends at its next safe point."""

    def on_signal(_: int, __: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
