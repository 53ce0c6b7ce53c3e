"""Serves the metrics of a process: an endpoint, an endpoint beside a replicator, or a replicator alone."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from headwater.api.app import ApiApp
from headwater.api.http.server import BoundedServer, bind
from headwater.api.metrics import (
    PATH,
    EndpointCollector,
    MetricsPage,
    SourceCollector,
    StoreSizes,
    WorkersCollector,
    reported_totals,
)
from headwater.api.refusals import Refusals
from headwater.api.workers import Workers
from headwater.cli.config import ServiceConfig
from headwater.cli.workers import METRICS_PORT
from headwater.replication.meters import Figures
from headwater.replication.status import SourceStatuses
from headwater.storage.open import open_store

log = logging.getLogger(__name__)


def endpoint_page(
    config: ServiceConfig, port: int, app: ApiApp, workers: Workers | None, *, unified: bool
) -> MetricsPage:
    """Of an endpoint, for a port; of all its processes, if it has `workers`. With `unified`, it includes the replicator
    beside it."""
    _say(config, port)
    own = _own(app) if workers is None else WorkersCollector(workers)
    sizes = StoreSizes(open_store(config.storage).disk_use)
    sources = SourceCollector(_standings(config), reported_totals if unified else None, sizes if unified else None)
    return MetricsPage(own, sources, process=workers is None)


def metrics_of(app: ApiApp) -> bytes:
    """The metrics of this process, one of several of an endpoint, for whichever of them Prometheus asks."""
    registry = CollectorRegistry()
    registry.register(_own(app))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _own(app: ApiApp) -> EndpointCollector:
    endpoint = app.endpoint
    return EndpointCollector(
        lambda: endpoint.streams.count,
        endpoint.traffic,
        endpoint.requests,
        endpoint.refusals,
        endpoint.unknown_columns,
        endpoint.settings.keys.unfetched,
    )


@contextlib.contextmanager
def replicator_page(config: ServiceConfig, port: int, figures: Mapping[str, Figures]) -> Iterator[None]:
    """Serve the metrics of replicators alone, with figures by source, from a thread, while the context is open. Of
    several processes, the one that follows the first source has the sizes of the store. Raises AddressInUseError."""
    listening = bind(config.metrics_host, port, METRICS_PORT)
    first = config.sources[0].name in figures
    sizes = StoreSizes(open_store(config.storage).disk_use) if first else None
    followed = [source for source in config.sources if source.name in figures]
    reader = open_store(config.storage).open_reader()
    standings = SourceStatuses(reader, followed)
    collector: Collector = SourceCollector(standings, lambda status: figures[status.source].totals(), sizes)
    server = BoundedServer(MetricsPage(collector), config.api.http, Refusals(), "off")
    thread = threading.Thread(target=server.run, args=([listening],), name="metrics")
    thread.start()
    _say(config, listening.getsockname()[1])
    try:
        yield
    finally:
        server.should_exit = True
        thread.join()
        reader.close()


def _say(config: ServiceConfig, port: int) -> None:
    log.info("metrics are answered at http://%s:%d%s", config.metrics_host, port, PATH)


def _standings(config: ServiceConfig) -> SourceStatuses:
    return SourceStatuses(open_store(config.storage).open_reader(), config.sources)
