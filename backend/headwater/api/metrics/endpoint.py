"""The metrics of an endpoint process: streams, the data sent over them, requests and refusals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headwater.api.auth.keys import Unfetched
from headwater.api.errors import ApiError
from headwater.api.http.requests import Requests
from headwater.api.refusals import Refusals
from headwater.api.streams.hub import REPLACED
from headwater.api.streams.service import REVOKED, SHUTTING_DOWN, TERMINATED
from headwater.api.streams.stream import EXPIRED, OTHER_STREAMS
from headwater.api.streams.traffic import CLIENT_GONE, DELAYS, FAILED, NOT_READING, Delays, Traffic

ENDS = (
    CLIENT_GONE,
    FAILED,
    NOT_READING,
    OTHER_STREAMS,
    REPLACED,
    REVOKED,
    SHUTTING_DOWN,
    TERMINATED,
    EXPIRED,
)
"""The reasons why streams end. Each starts at 0, so that Prometheus sees the first one as an increase."""


@dataclass(frozen=True, eq=False)
class EndpointCollector(Collector):
    """Reads the counters of the event loop, from any thread."""

    open_streams: Callable[[], int]
    traffic: Traffic
    requests: Requests
    refusals: Refusals
    unknown_columns: Callable[[], Mapping[tuple[str, str, str], int]] = dict
    unfetched: Callable[[], Sequence[Unfetched]] = tuple

    def describe(self) -> list[Metric]:
        """Return nothing: labels depend on what was counted."""
        return []

    def collect(self) -> Iterator[Metric]:
        traffic = self.traffic
        yield GaugeMetricFamily("powersync_concurrent_connections", "Streams that are open", self.open_streams())
        yield CounterMetricFamily("powersync_operations_synced", "Operations sent to devices", traffic.operations)
        yield CounterMetricFamily(
            "powersync_data_synced_bytes", "Bytes of streams before compression", traffic.plain_bytes
        )
        yield CounterMetricFamily("powersync_data_sent_bytes", "Bytes of streams as they went out", traffic.sent_bytes)
        yield _delays(traffic.delays)
        ends = CounterMetricFamily("headwater_streams_ended", "Streams that have ended, by why", labels=["reason"])
        for reason, count in {**dict.fromkeys(ENDS, 0), **traffic.ended()}.items():
            ends.add_metric([reason], count)
        yield ends
        yield GaugeMetricFamily(
            "headwater_jwks_failing_seconds",
            "For how long keys of tokens could not be fetched from an address; 0 when all can be",
            max((time.time() - each.since for each in self.unfetched()), default=0.0),
        )
        yield from self._requests()

    def _requests(self) -> Iterator[Metric]:
        answered = CounterMetricFamily(
            "headwater_requests", "Requests answered, by route and class of status", labels=["route", "status"]
        )
        for (route, status), count in self.requests.counts().items():
            answered.add_metric([route, status], count)
        yield answered
        refused = CounterMetricFamily(
            "headwater_requests_refused", "Requests refused, and streams left out or cut off", labels=["code"]
        )
        for code, count in {**dict.fromkeys(sorted(_codes(ApiError)), 0), **self.refusals.counts()}.items():
            refused.add_metric([code], count)
        yield refused
        unknown = CounterMetricFamily(
            "headwater_upload_unknown_columns",
            "Uploaded writes that named a column which the table lacks, and which was left out or renamed",
            labels=["table", "column", "version"],
        )
        for labels, count in self.unknown_columns().items():
            unknown.add_metric(labels, count)
        yield unknown


def _delays(delays: Delays) -> HistogramMetricFamily:
    counts = delays.counts.copy()
    bounds = [*(str(bound) for bound in DELAYS), "+Inf"]
    return HistogramMetricFamily(
        "headwater_commit_to_line_seconds",
        "From a commit at the source until a device was sent a complete checkpoint with it",
        buckets=list(zip(bounds, accumulate(counts), strict=True)),
        sum_value=delays.seconds,
    )


def _codes(kind: type[ApiError]) -> set[str]:
    """The codes of this class and all its subclasses."""
    own = {kind.code} if kind is not ApiError else set()
    return own.union(*(_codes(each) for each in kind.__subclasses__()))
