"""Metrics of how each source stands, which is what commands and the admin API say of it; of the totals of its
replicator, and of the size of the store."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headwater.api.metrics.sizes import StoreSizes
from headwater.errors import HeadwaterError
from headwater.replication.health.figures import Totals
from headwater.replication.health.model import State
from headwater.replication.health.standing import Standing, Standings
from headwater.source.readiness.health import SlotHealth
from headwater.storage.contract.stats import Disk

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class SourceCollector(Collector):
    """Reads the store each time Prometheus asks. Only one process may be given `totals` and `sizes`, the replicator or
    the endpoint beside it: if several reported the same, sums over processes would be wrong."""

    standings: Standings
    totals: Callable[[Standing], Totals] | None = None
    sizes: StoreSizes | None = None

    def describe(self) -> list[Metric]:
        """Return nothing. Without this method, registration would call `collect`, which reads the store."""
        return []

    def collect(self) -> Iterator[Metric]:
        try:
            found = self.standings.find()
        except HeadwaterError as error:
            _log.warning("metrics lack the sources: %s", error)
            return
        yield from source_metrics(found)
        if self.totals is not None:
            yield from _totals({each.source: self.totals(each) for each in found})
        if self.sizes is not None and (disk := self.sizes.known()) is not None:
            yield from _sizes(disk)


def told_totals(standing: Standing) -> Totals:
    """The totals that the replicator, in another process, told last; zeros before the first one ran."""
    return standing.totals


def _totals(totals: Mapping[str, Totals]) -> Iterator[Metric]:
    for name, (help_text, figure) in _TOTALS.items():
        family = CounterMetricFamily(name, help_text, labels=["source"])
        for tag, each in totals.items():
            family.add_metric([tag], figure(each))
        yield family


def _sizes(disk: Disk) -> Iterator[Metric]:
    yield GaugeMetricFamily("powersync_replication_storage_size_bytes", "Our copies of the source's rows", disk.rows)
    yield GaugeMetricFamily(
        "powersync_operation_storage_size_bytes", "Histories that devices download", disk.ops + disk.segments
    )
    yield GaugeMetricFamily("powersync_parameter_storage_size_bytes", "Lookups of sync rules", disk.lookups)


def source_metrics(sources: Sequence[Standing]) -> Iterator[Metric]:
    """The metrics of sources."""
    for name, (help_text, figure) in _FIGURES.items():
        family = GaugeMetricFamily(name, help_text, labels=["source"])
        for each in sources:
            value = figure(each)
            if value is not None:
                family.add_metric([each.source], value)
        yield family
    states = GaugeMetricFamily("headwater_source_state", "1 for the current state, else 0", labels=["source", "state"])
    findings = GaugeMetricFamily(
        "headwater_source_findings", "Findings about the source, by code", labels=["source", "code", "fatal"]
    )
    for each in sources:
        for state in State:
            states.add_metric([each.source, state.value], float(each.state is state))
        for (code, fatal), count in Counter((f.code, f.fatal) for f in each.findings).items():
            findings.add_metric([each.source, code, str(fatal).lower()], count)
    yield states
    yield findings


def _slot(figure: Callable[[SlotHealth], float | None]) -> Callable[[Standing], float | None]:
    """Of the slot as a replicator that runs has seen it."""
    return lambda standing: figure(standing.slot) if standing.slot is not None and standing.runs else None


_FIGURES: dict[str, tuple[str, Callable[[Standing], float | None]]] = {
    "powersync_replication_lag_seconds": (
        "Age of the oldest commit that the store may lack",
        lambda standing: standing.lag_seconds,
    ),
    "headwater_source_noted_timestamp_seconds": (
        "When the replicator last told how it stands, in seconds since 1970",
        lambda standing: standing.at,
    ),
    "headwater_source_errors_in_a_row": (
        "Failed attempts since replication last worked",
        lambda standing: float(standing.cause.attempts) if standing.cause else 0.0,
    ),
    "headwater_source_tables_in_resync": (
        "Tables that are being compared with the source",
        lambda standing: float(len(standing.compared)),
    ),
    "headwater_slot_behind_bytes": (
        "WAL of the source that is not in the store yet",
        lambda standing: standing.lag_bytes,
    ),
    "headwater_slot_held_bytes": (
        "WAL that the source keeps because of the slot",
        _slot(lambda slot: slot.held),
    ),
    "headwater_slot_left_bytes": (
        "WAL that may still be written before the slot is lost; absent without a limit",
        _slot(lambda slot: slot.left),
    ),
    "headwater_slot_xmin_age": (
        "Age, in transactions, of the oldest catalog rows that the slot keeps",
        _slot(lambda slot: slot.xmin_age),
    ),
}

_TOTALS: dict[str, tuple[str, Callable[[Totals], int]]] = {
    "powersync_rows_replicated": ("Changes of rows, and rows that bulk work brought", lambda totals: totals.rows),
    "powersync_transactions_replicated": ("Transactions of the source", lambda totals: totals.transactions),
    "powersync_data_replicated_bytes": (
        "Bytes of the source's stream, not of snapshots",
        lambda totals: totals.bytes,
    ),
    "powersync_chunks_replicated": ("Parts of the stream, and tasks of snapshots", lambda totals: totals.chunks),
}
