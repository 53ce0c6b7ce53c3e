"""A collector of OpenTelemetry traces over HTTP, as small as can be."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.quiet_http import http_server, send_answer


@dataclass(frozen=True)
class Sent:
    """A span as it came. Times are in seconds since 1970."""

    name: str
    trace: bytes
    id: bytes
    parent: bytes
    began: float
    ended: float
    facts: dict[str, object]
    service: str


@dataclass
class Collector:
    """Keeps what it was sent."""

    url: str = ""
    spans: list[Sent] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def named(self, name: str) -> list[Sent]:
        return [span for span in self.spans if span.name == name]

    def take(self, path: str, body: bytes) -> None:
        self.paths.append(path)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = _facts(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans.extend(_sent(span, str(service)) for span in scope.spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(self.path, gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            send_answer(self, b"")

    with http_server(Handler) as port:
        collector.url = f"http://127.0.0.1:{port}"
        yield collector


def _sent(span: Any, service: str) -> Sent:  # generated code has no types
    began, ended = span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9
    facts = _facts(span.attributes)
    return Sent(span.name, span.trace_id, span.span_id, span.parent_span_id, began, ended, facts, service)


def _facts(attributes: Any) -> dict[str, object]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
