"""A collector of OpenTelemetry traces over HTTP, as small as can be."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


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
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()


def _sent(span: object, service: str) -> Sent:
    return Sent(
        span.name,  # type: ignore[attr-defined]  # generated code has no types
        span.trace_id,  # type: ignore[attr-defined]
        span.span_id,  # type: ignore[attr-defined]
        span.parent_span_id,  # type: ignore[attr-defined]
        span.start_time_unix_nano / 1e9,  # type: ignore[attr-defined]
        span.end_time_unix_nano / 1e9,  # type: ignore[attr-defined]
        _facts(span.attributes),  # type: ignore[attr-defined]
        service,
    )


def _facts(attributes: object) -> dict[str, object]:
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value"))
        for each in attributes  # type: ignore[attr-defined]
    }
