"""The page of metrics that Prometheus reads, on a port of its own: the endpoint and its processes, the sources, the
replicator's totals and the size of the store."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from headwater.api.auth.keys import Unfetched
from headwater.api.http.requests import RequestCounts
from headwater.api.refusals import Refusals
from headwater.api.streams.hub import REPLACED
from headwater.api.streams.service import REVOKED, SHUTTING_DOWN, TERMINATED
from headwater.api.streams.stream import EXPIRED, OTHER_STREAMS
from headwater.api.streams.traffic import CLIENT_GONE, DELAYS, FAILED, NOT_READING, Delays, Traffic
from headwater.api.workers import Workers
from headwater.codes import CODES, RefusalCode
from headwater.errors import HeadwaterError
from headwater.replication.computed import RefreshState
from headwater.replication.meters import Totals
from headwater.replication.status import ReplicationState, SourceStatus, SourceStatuses
from headwater.source.readiness.health import SlotHealth
from headwater.storage.sql.stats import Disk

SECONDS = 60.0
"""The least time between two measurements."""

_SHARE = 0.01
"""The most of all time that measuring may take: it reads a part of every page of an embedded store."""

Labels = TypeVar("Labels", bound=str | tuple[str, ...])

log = logging.getLogger(__name__)


class StoreSizes:
    """Keeps the last measurement, and starts a new one in a thread when that is due."""

    def __init__(self, measure: Callable[[], Disk], now: Callable[[], float] = time.monotonic) -> None:
        self._measure = measure
        self._now = now
        self._lock = threading.Lock()
        self._due = now()
        self._known: Disk | None = None

    def known(self) -> Disk | None:
        """The last measurement; None before the first one. Does not wait for a new one."""
        with self._lock:
            if self._now() >= self._due:
                self._due = float("inf")
                threading.Thread(target=self._run, name="headwater-sizes", daemon=True).start()
        return self._known

    def _run(self) -> None:
        began = self._now()
        try:
            self._known = self._measure()
        except HeadwaterError as error:
            log.warning("the size of the store is not known: %s", error)
        except Exception:
            log.exception("the size of the store could not be measured")
        finally:
            took = self._now() - began
            self._due = self._now() + max(SECONDS, took / _SHARE)


@dataclass(frozen=True, eq=False)
class SourceCollector(Collector):
    """Reads the store each time Prometheus asks. Only one process may be given `totals` and `sizes`, the replicator or
    the endpoint beside it: if several reported the same, sums over processes would be wrong."""

    standings: SourceStatuses
    totals: Callable[[SourceStatus], Totals] | None = None
    sizes: StoreSizes | None = None

    def collect(self) -> Iterator[Metric]:
        try:
            found = self.standings.find()
        except HeadwaterError as error:
            log.warning("metrics lack the sources: %s", error)
            return
        yield from source_metrics(found)
        if self.totals is not None:
            totals = {each.source: self.totals(each) for each in found}
            for name, (text, total) in _TOTALS.items():
                figures = {tag: total(each) for tag, each in totals.items()}
                yield _labelled(CounterMetricFamily, name, text, ["source"], figures)
        if self.sizes is not None and (disk := self.sizes.known()) is not None:
            yield from _sizes(disk)


def reported_totals(standing: SourceStatus) -> Totals:
    """The totals that the replicator, in another process, reported last; zeros before the first one ran."""
    return standing.totals


def _labelled(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    help_text: str,
    labels: Sequence[str],
    values: Mapping[Labels, float | None],
) -> Metric:
    """A metric with a value for each set of labels, without the values that are None."""
    family = kind(name, help_text, labels=labels)
    for of, value in values.items():
        if value is not None:
            family.add_metric([of] if isinstance(of, str) else of, value)
    return family


def _sizes(disk: Disk) -> Iterator[Metric]:
    yield GaugeMetricFamily("powersync_replication_storage_size_bytes", "Our copies of the source's rows", disk.rows)
    yield GaugeMetricFamily(
        "powersync_operation_storage_size_bytes", "Histories that devices download", disk.ops + disk.segments
    )
    yield GaugeMetricFamily("powersync_parameter_storage_size_bytes", "Lookups of sync rules", disk.lookups)


def source_metrics(sources: Sequence[SourceStatus]) -> Iterator[Metric]:
    for name, (text, figure) in _FIGURES.items():
        values = {each.source: figure(each) for each in sources}
        yield _labelled(GaugeMetricFamily, name, text, ["source"], values)
    states = {(each.source, state.value): float(each.state is state) for each in sources for state in ReplicationState}
    yield from computed_metrics(sources)
    findings = Counter(
        (each.source, found.code, str(found.fatal).lower()) for each in sources for found in each.findings
    )
    yield _labelled(
        GaugeMetricFamily, "headwater_source_state", "1 for the current state, else 0", ["source", "state"], states
    )
    yield _labelled(
        GaugeMetricFamily,
        "headwater_source_findings",
        "Findings about the source, by code",
        ["source", "code", "fatal"],
        findings,
    )


def computed_metrics(sources: Sequence[SourceStatus]) -> Iterator[Metric]:
    """How the computed tables stand."""
    for name, (text, figure) in _COMPUTED.items():
        values = {(each.source, table.name): figure(table) for each in sources for table in each.computed if table.lsn}
        yield _labelled(GaugeMetricFamily, name, text, ["source", "table"], values)


_COMPUTED: dict[str, tuple[str, Callable[[RefreshState], float]]] = {
    "headwater_computed_table_refreshed_timestamp_seconds": (
        "When the rows of a computed table were read, in seconds since 1970",
        lambda each: each.at,
    ),
    "headwater_computed_table_refresh_seconds": (
        "How long the last refresh of a computed table took",
        lambda each: each.seconds,
    ),
    "headwater_computed_table_rows": ("Rows of a computed table", lambda each: float(each.rows)),
    "headwater_computed_table_changed_rows": (
        "Rows that the last refresh of a computed table changed",
        lambda each: float(each.changed),
    ),
}


def _slot(figure: Callable[[SlotHealth], float | None]) -> Callable[[SourceStatus], float | None]:
    """Of the slot as a replicator that runs has seen it."""
    return lambda standing: figure(standing.slot) if standing.slot is not None and standing.runs else None


_FIGURES: dict[str, tuple[str, Callable[[SourceStatus], float | None]]] = {
    "powersync_replication_lag_seconds": (
        "Age of the oldest commit that the store may lack",
        lambda each: each.lag_seconds,
    ),
    "headwater_source_noted_timestamp_seconds": (
        "When the replicator last reported its state, in seconds since 1970",
        lambda each: each.at,
    ),
    "headwater_source_errors_in_a_row": (
        "Failed attempts since replication last worked",
        lambda each: float(each.cause.attempts) if each.cause else 0.0,
    ),
    "headwater_source_tables_in_resync": (
        "Tables that are being compared with the source",
        lambda each: float(len(each.compared)),
    ),
    "headwater_slot_behind_bytes": ("WAL of the source that is not in the store yet", lambda each: each.lag_bytes),
    "headwater_slot_held_bytes": ("WAL that the source keeps because of the slot", _slot(lambda slot: slot.held)),
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
    "powersync_data_replicated_bytes": ("Bytes of the source's stream, not of snapshots", lambda totals: totals.bytes),
    "powersync_chunks_replicated": ("Parts of the stream, and tasks of snapshots", lambda totals: totals.chunks),
}


ENDS = (
    CLIENT_GONE, FAILED, NOT_READING, OTHER_STREAMS, REPLACED, REVOKED, SHUTTING_DOWN, TERMINATED, EXPIRED,
)  # fmt: skip
"""The reasons why streams end. Each starts at 0, so that Prometheus sees the first one as an increase."""

REFUSALS = sorted(code for code, each in CODES.items() if isinstance(each, RefusalCode))


@dataclass(frozen=True, eq=False)
class EndpointCollector(Collector):
    """Reads the counters of the event loop, from any thread."""

    open_streams: Callable[[], int]
    traffic: Traffic
    requests: RequestCounts
    refusals: Refusals
    unknown_columns: Callable[[], Mapping[tuple[str, str, str], int]] = dict
    unfetched: Callable[[], Sequence[Unfetched]] = tuple

    def collect(self) -> Iterator[Metric]:
        traffic = self.traffic
        yield GaugeMetricFamily("powersync_concurrent_connections", "Streams that are open", self.open_streams())
        yield CounterMetricFamily("powersync_operations_synced", "Operations sent to devices", traffic.operations)
        yield CounterMetricFamily(
            "powersync_data_synced_bytes", "Bytes of streams before compression", traffic.plain_bytes
        )
        yield CounterMetricFamily("powersync_data_sent_bytes", "Bytes of streams as they went out", traffic.sent_bytes)
        yield _delays(traffic.delays)
        ends = {**dict.fromkeys(ENDS, 0), **traffic.ended()}
        yield _labelled(
            CounterMetricFamily, "headwater_streams_ended", "Streams that have ended, by why", ["reason"], ends
        )
        yield GaugeMetricFamily(
            "headwater_jwks_failing_seconds",
            "For how long keys of tokens could not be fetched from an address; 0 when all can be",
            max((time.time() - each.since for each in self.unfetched()), default=0.0),
        )
        yield _labelled(
            CounterMetricFamily,
            "headwater_requests",
            "Requests answered, by route and class of status",
            ["route", "status"],
            self.requests.counts(),
        )
        yield _labelled(
            CounterMetricFamily,
            "headwater_requests_refused",
            "Requests refused, and streams left out or cut off",
            ["code"],
            {**dict.fromkeys(REFUSALS, 0), **self.refusals.counts()},
        )
        yield _labelled(
            CounterMetricFamily,
            "headwater_upload_unknown_columns",
            "Uploaded writes that named a column which the table lacks, and which was left out or renamed",
            ["table", "column", "version"],
            self.unknown_columns(),
        )


def _delays(delays: Delays) -> HistogramMetricFamily:
    counts = delays.counts.copy()
    bounds = [*(str(bound) for bound in DELAYS), "+Inf"]
    return HistogramMetricFamily(
        "headwater_commit_to_line_seconds",
        "From a commit at the source until a device was sent a complete checkpoint with it",
        buckets=list(zip(bounds, accumulate(counts), strict=True)),
        sum_value=delays.seconds,
    )


METRICS = "metrics"
"""What the processes are asked for."""


@dataclass(frozen=True, eq=False)
class WorkersCollector(Collector):
    """Asks all processes for their metrics."""

    workers: Workers

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for number, answer in self.workers.ask(METRICS):
            for found in text_string_to_metric_families(answer.decode()):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                family.samples += [
                    Sample(each.name, {**each.labels, "worker": str(number)}, each.value) for each in found.samples
                ]
        yield from families.values()


PATH = "/metrics"

_Encoder = Callable[[Collector], bytes]


class MetricsPage:
    """An ASGI application that answers /metrics. Collecting reads the store, so it runs in a thread. There is only one,
    and requests that arrive while it collects share its result. With `process`, it has this process's CPU time and
    memory, too."""

    def __init__(self, *collectors: Collector, process: bool = True) -> None:
        self._registry = CollectorRegistry()
        for each in collectors:
            self._registry.register(each)
        if process:
            ProcessCollector(registry=self._registry)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headwater-metrics")
        self._collecting: dict[str, asyncio.Future[bytes]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await (await self._answer(Request(scope)))(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    async def _answer(self, request: Request) -> Response:
        if request.url.path != PATH:
            return PlainTextResponse(f"the metrics are at {PATH}\n", 404)
        if request.method not in {"GET", "HEAD"}:
            return PlainTextResponse("only GET is answered\n", 405, {"allow": "GET, HEAD"})
        encode, content_type = _form(request.headers.get("accept", ""))
        if content_type not in self._collecting:
            collecting = asyncio.get_running_loop().run_in_executor(self._thread, encode, self._registry)
            self._collecting[content_type] = collecting
            collecting.add_done_callback(lambda _: self._collecting.pop(content_type))
        body = await asyncio.shield(self._collecting[content_type])
        return Response(body, headers={"content-type": content_type})


def _form(accept: str) -> tuple[_Encoder, str]:
    """The format that an Accept header asks for; the plain one when the header is malformed."""
    try:
        return choose_encoder(accept)
    except (ValueError, TypeError):  # TypeError when a version is not a number
        return generate_latest, CONTENT_TYPE_PLAIN_0_0_4
