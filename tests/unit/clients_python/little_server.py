"""A server of a few lines for one device: it sends the same lines on each stream, and holds the stream open."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler

import pytest

from headwater_client import Credentials, Database
from headwater_client.sync.engine import SyncThread
from tests.support.quiet_http import http_server, send_answer

Line = dict[str, object]
COMPLETE: Line = {"checkpoint_complete": {"last_op_id": "9"}}


def checkpoint(*, checksum: int = 1, count: int = 1, priority: int = 3) -> Line:
    """A first line, with one bucket."""
    bucket = {"bucket": "b", "checksum": checksum, "count": count, "priority": priority}
    return {"checkpoint": {"last_op_id": "9", "streams": [], "buckets": [bucket]}}


def row(number: int, data: str = "{}", table: str = "todos", row_id: str = "1") -> Line:
    """A line with one row of the bucket."""
    op = {"op_id": str(number), "op": "PUT", "object_type": table, "object_id": row_id, "subkey": "s", "checksum": 1}
    return {"data": {"bucket": "b", "data": [{**op, "data": data}]}}


class App:
    """A connector made of two functions, which counts how often it is asked for a token."""

    def __init__(
        self, endpoint: str, upload: Callable[[Database], object] = lambda _: None, token: Callable[[int], str] = str
    ) -> None:
        self.endpoint, self.upload, self.token, self.fetched = endpoint, upload, token, 0

    def fetch_credentials(self) -> Credentials:
        self.fetched += 1
        return Credentials(self.endpoint, self.token(self.fetched))

    def upload_data(self, database: Database) -> None:
        self.upload(database)


def upload_all(database: Database) -> None:
    for each in database.crud_transactions():
        each.complete()


def noted_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list that grows by the seconds that a device waits after each failure, as the wait begins."""
    pauses: list[float] = []
    pause = SyncThread._pause

    async def noted(thread: SyncThread, seconds: float) -> None:
        pauses.append(seconds)
        await pause(thread, seconds)

    monkeypatch.setattr(SyncThread, "_pause", noted)
    return pauses


class LittleServer:
    """`numbered` answers a checkpoint request by number; `streams` counts the streams that were opened. After `lines`,
    `again` comes now and then."""

    def __init__(self, lines: list[Line], numbered: Callable[[int], int] = lambda number: number) -> None:
        self.lines, self.numbered, self.streams = lines, numbered, 0
        self.refused: set[str] = set()
        self.again: Line | None = None
        self.ended = threading.Event()
        self.endpoint = ""

    def line_up(self, handler: BaseHTTPRequestHandler) -> None:
        self.streams += 1
        handler.send_response(200)
        handler.send_header("content-type", "application/x-ndjson")
        handler.send_header("connection", "close")
        handler.end_headers()
        handler.wfile.write(b"".join(json.dumps(line).encode() + b"\n" for line in self.lines))
        with suppress(OSError):  # the device has left
            while not self.ended.wait(0.1 if self.again else 60) and self.again:
                handler.wfile.write(json.dumps(self.again).encode() + b"\n")

    def other(self, handler: BaseHTTPRequestHandler, body: Line) -> None:
        number = self.numbered(int(str(body["checkpoint_request_id"])))
        self.answer(handler, {"checkpoint_request_id": str(number)})

    def answer(self, handler: BaseHTTPRequestHandler, body: Line) -> None:
        send_answer(handler, json.dumps({"data": body}).encode(), connection="close")


Start = Callable[[LittleServer], LittleServer]


@contextmanager
def serving(server: LittleServer) -> Iterator[LittleServer]:
    """The server on a port of its own, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            server.answer(self, {"write_checkpoint": "1"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.close_connection = True
            if self.headers["authorization"].removeprefix("Token ") in server.refused:
                self.send_error(401)
            elif self.path == "/sync/stream":
                server.line_up(self)
            else:
                server.other(self, body)

    with http_server(Handler) as port:
        server.endpoint = f"http://127.0.0.1:{port}"
        try:
            yield server
        finally:
            server.ended.set()
