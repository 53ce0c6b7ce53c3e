"""Figures for Prometheus, on a port of their own: they need no token there, and name no host and no row."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headwater.api.admin.status import health_of
from headwater.api.http.server import AddressInUseError
from headwater.errors import HeadwaterError
from headwater.replication.health.model import Health, State
from headwater.source.readiness.health import SlotHealth
from headwater.storage.contract.reader import StoreReader

_log = logging.getLogger(__name__)


def serve_metrics(
    host: str,
    port: int,
    reader: StoreReader,
    tags: Sequence[str],
    open_streams: Callable[[], int],
    refused: Callable[[], Mapping[str, int]],
) -> int:
    """Answer `/metrics` from a thread, as long as the process lives. Returns the port. Raises AddressInUseError."""
    registry = CollectorRegistry()
    registry.register(ServiceCollector(reader, tags, open_streams, refused))
    try:
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise AddressInUseError(
            f"can't listen on port {port}: {error.strerror}", f"{host}:{port}", "set another telemetry.prometheus_port"
        ) from error
    return int(server.server_port)


class ServiceCollector(Collector):
    """Reads everything anew each time it is asked."""

    def __init__(
        self,
        reader: StoreReader,
        tags: Sequence[str],
        open_streams: Callable[[], int],
        refused: Callable[[], Mapping[str, int]],
    ) -> None:
        self._reader = reader
        self._tags = tags
        self._open_streams = open_streams
        self._refused = refused

    def describe(self) -> list[Metric]:
        """Nothing beforehand, or the store would be read on registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("powersync_concurrent_connections", "Streams that are open", self._open_streams())
        requests = CounterMetricFamily(
            "headwater_requests_refused", "Requests refused, and streams left out", labels=["code"]
        )
        for code, count in self._refused().items():
            requests.add_metric([code], count)
        yield requests
        try:
            healths = {tag: health_of(self._reader, tag) for tag in self._tags}
        except HeadwaterError as error:
            _log.warning("metrics lack the sources: %s", error)
            return
        yield from source_metrics({tag: health for tag, health in healths.items() if health is not None})


def source_metrics(healths: dict[str, Health]) -> Iterator[Metric]:
    """What the replicators have noted of each source, by its tag."""
    for name, (help_text, figure) in _FIGURES.items():
        family = GaugeMetricFamily(name, help_text, labels=["source"])
        for tag, health in healths.items():
            value = figure(health)
            if value is not None:
                family.add_metric([tag], value)
        yield family
    states = GaugeMetricFamily("headwater_source_state", "1 for the state that it is in", labels=["source", "state"])
    findings = GaugeMetricFamily(
        "headwater_source_findings", "What is not as it should be, by code", labels=["source", "code", "fatal"]
    )
    for tag, health in healths.items():
        for state in State:
            states.add_metric([tag, state.value], float(health.state is state))
        for (code, fatal), count in Counter((f.code, f.fatal) for f in health.findings).items():
            findings.add_metric([tag, code, str(fatal).lower()], count)
    yield states
    yield findings


def _slot(figure: Callable[[SlotHealth], float | None]) -> Callable[[Health], float | None]:
    return lambda health: None if health.slot is None else figure(health.slot)


_FIGURES: dict[str, tuple[str, Callable[[Health], float | None]]] = {
    "powersync_replication_lag_seconds": (
        "Age of the oldest commit that the store may lack",
        lambda health: health.lag_seconds,
    ),
    "headwater_source_noted_timestamp_seconds": (
        "When the replicator last said how it stands",
        lambda health: health.at,
    ),
    "headwater_source_errors_in_a_row": (
        "Failed attempts since rows flowed last",
        lambda health: float(health.cause.attempts) if health.cause else 0.0,
    ),
    "headwater_source_tables_in_resync": (
        "Tables that are being compared with the source",
        lambda health: float(len(health.compared)),
    ),
    "headwater_slot_behind_bytes": (
        "Log that the store does not have yet",
        _slot(lambda slot: slot.behind),
    ),
    "headwater_slot_held_bytes": (
        "Log that the source keeps because of the slot",
        _slot(lambda slot: slot.held),
    ),
    "headwater_slot_left_bytes": (
        "Log that may still be written before the slot is lost; absent without a limit",
        _slot(lambda slot: slot.left),
    ),
    "headwater_slot_xmin_age": (
        "Transactions since the oldest that the slot keeps catalog rows of",
        _slot(lambda slot: slot.xmin_age),
    ),
}
