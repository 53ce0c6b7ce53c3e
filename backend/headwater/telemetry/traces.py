"""Sends OpenTelemetry traces of changes: from the commit at the source into the store, and on to devices.

The replicator and each endpoint send the spans that they see, once these have ended. Trace ids are computed from the
flush that brought the change, so processes need not pass them on. This module needs the packages of the extra `otel`:
import it only when a collector is configured.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from importlib.metadata import version

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context

from headwater.storage.contract.reader import FlushMark
from headwater.telemetry.trace_choice import Choice, Flushed, TraceSettings, ids_of

MOST_DEVICES = 20
"""The most devices of one process in a trace: a change may go to thousands."""

_CLOSING_SECONDS = 3.0
_PATH = "/v1/traces"
_REMEMBERED = 100  # traces whose devices are counted

_INNER = SpanKind.INTERNAL
_Attributes = dict[str, str | int | float]


class Traces:
    """Makes the spans of one process. Use it in one thread; spans are sent later, from a thread of its own."""

    def __init__(self, settings: TraceSettings) -> None:
        self._choice = Choice(settings.per_minute)
        self._ids = _Ids()
        resource = Resource.create({"service.name": "headwater", "service.version": version("headwater")})
        self._provider = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=self._ids)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=_address(settings))))
        self._tracer = self._provider.get_tracer("headwater")
        self._devices: dict[FlushMark, int] = {}

    def close(self) -> None:
        """Send the remaining spans, for at most _CLOSING_SECONDS."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSING_SECONDS)

    def flushed(self, flushed: Flushed) -> None:
        """Record a flush that the replicator stored, if it is traced."""
        flush = flushed.mark
        if not flush.committed_us or not self._choice.takes(flush):
            return
        committed = min(flush.committed_at, flushed.stored)
        began = max(committed, flushed.began)
        counts: _Attributes = {"headwater.transactions": flushed.transactions, "headwater.rows": flushed.rows}
        names: _Attributes = {"headwater.source": flush.source, "headwater.op_id": flush.last_op}
        self._ids.next = ids_of(flush)
        self._span("change", committed, flushed.stored, Context(), names | counts)
        self._span("receive", committed, began, _within(flush), {})
        self._span("flush", began, flushed.stored, _within(flush), {})

    def choose(self, flushes: Sequence[FlushMark]) -> FlushMark | None:
        """The flush among these that is traced, or None."""
        return self._choice.first(flushes)

    def delivered(self, flush: FlushMark, learned: float, at: float, user_id: str, client_id: str | None) -> None:
        """Record that a device was sent a flush's change at `at`, of which this process learned at `learned`, both in
        seconds since 1970."""
        count = self._devices[flush] = self._devices.get(flush, 0) + 1
        if count > MOST_DEVICES:
            return
        if len(self._devices) > _REMEMBERED:
            del self._devices[next(iter(self._devices))]
        attributes: _Attributes = {
            "user.id": user_id,
            "headwater.client_id": client_id or "",
            "headwater.seconds_since_commit": max(0.0, at - flush.committed_at),
        }
        self._span("deliver", learned, max(at, learned), _within(flush), attributes, SpanKind.PRODUCER)

    def _span(
        self, name: str, began: float, ended: float, context: Context, attributes: _Attributes, kind: SpanKind = _INNER
    ) -> None:
        span = self._tracer.start_span(name, context, kind, attributes, start_time=round(began * 1e9))
        span.end(round(ended * 1e9))


class _Ids(RandomIdGenerator):
    """Random ids, except for the next span when `next` sets its trace id and span id."""

    next: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.next is None else self.next[0]

    def generate_span_id(self) -> int:
        if self.next is None:
            return super().generate_span_id()
        (_, span), self.next = self.next, None
        return span


def _within(flush: FlushMark) -> Context:
    trace, span = ids_of(flush)
    parent = SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _address(settings: TraceSettings) -> str | None:
    if settings.endpoint is None:
        return None  # the exporter reads the environment variables itself
    base = settings.endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH
