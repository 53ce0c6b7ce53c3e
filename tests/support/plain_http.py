"""An endpoint in a thread of the tests, and a client of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from headwater.api.app import ApiApp
from headwater.api.http.server import ApiServer
from tests.support.waiting import wait_until


def plain_http(port: int, headers: Mapping[str, str] | None = None) -> httpx.Client:
    """Speaks to a port of this machine. It loads no certificates, which would take 25 ms of each test."""
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, verify=False)


@contextmanager
def served(
    app: ApiApp, sockets: list[socket.socket], headers: Mapping[str, str] | None = None
) -> Iterator[tuple[ApiServer, threading.Thread, httpx.Client]]:
    """The app on these sockets, until the block ends, and a client of the last of them."""
    server = ApiServer(app)
    port = sockets[-1].getsockname()[1]
    thread = threading.Thread(target=server.run, args=(sockets,))
    thread.start()
    try:
        with plain_http(port, headers) as http:
            wait_until(lambda: http.get("/probes/startup").status_code == 200, "the server to start")
            yield server, thread, http
    finally:
        if not server.should_exit:  # a second signal would not let it end in order
            server.handle_exit(15, None)
        thread.join(60)
        assert not thread.is_alive(), "the server ends"
