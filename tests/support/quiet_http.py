"""HTTP servers that tests run in a thread, and that say nothing of their own."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Clients that hang up, also within TLS, are what some tests are about."""


def send_answer(request: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    """Answer a request; the underscores of a header's name are hyphens."""
    request.send_response(status)
    for name, value in {"Content_Length": str(len(body)), **headers}.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()
    request.wfile.write(body)


@contextmanager
def http_server(
    handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None, **options: object
) -> Iterator[int]:
    """Serves on 127.0.0.1 until the block ends; yields the port. `options` are those of the handler."""
    quiet: Any = type("Quiet", (handler,), {"log_message": lambda *_: None})
    with _Server(("127.0.0.1", 0), partial(quiet, **options)) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join(10)
