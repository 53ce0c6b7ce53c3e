"""How long a device waits before it asks again, and what the server has to say about that."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from headwater_client import ConnectOptions, Database, UploadConnector
from headwater_client.errors import RefusedError, UnreachableError
from headwater_client.timeouts import Backoff
from tests.support.quiet_http import send_answer
from tests.unit.clients_python.little_server import Line, LittleServer, serving


def test_waits_double_up_to_a_limit() -> None:
    backoff = Backoff(1.0, longest=10.0)
    waits = [backoff.next() for _ in range(6)]
    assert all(base / 2 <= wait <= base for wait, base in zip(waits, [1, 2, 4, 8, 10, 10], strict=True))
    backoff.succeeded()
    assert backoff.next() <= 1.0


def test_waits_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", random.Random(7).uniform)
    waits = sorted(Backoff(1.0).next() for _ in range(1000))
    assert waits[99] < 0.6
    assert waits[900] > 0.9


@pytest.mark.parametrize(("asked", "least", "most"), [(7, 7, 10.5), (0, 0.5, 1), (86_400, 60, 60), (None, 0.5, 1)])
def test_retry_after_is_kept(asked: float | None, least: float, most: float) -> None:
    assert least <= Backoff(1.0).next(RefusedError("/sync/stream", 503, "full", asked)) <= most
    assert Backoff(1.0).next(UnreachableError("gone")) <= 1


class Full(LittleServer):
    """Has no room for anything for so long."""

    def __init__(self, retry_after: str) -> None:
        super().__init__([])
        self.retry_after = retry_after

    def line_up(self, handler: BaseHTTPRequestHandler) -> None:
        self.answer(handler, {})

    def other(self, handler: BaseHTTPRequestHandler, body: Line) -> None:
        self.answer(handler, {})

    def answer(self, handler: BaseHTTPRequestHandler, body: Line) -> None:
        send_answer(handler, b"", 429, retry_after=self.retry_after, connection="close")


@contextmanager
def device(path: Path, endpoint: str) -> Iterator[Database]:
    with Database(path / "device.db", {"todos": {"title": "text"}}) as database:
        database.connect(UploadConnector(endpoint, "t"), ConnectOptions(retry_delay=0.01))
        yield database
        database.disconnect()


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("-1", None), ("soon", None)]
)
def test_retry_after_of_the_error(tmp_path: Path, header: str, seconds: float | None) -> None:
    with serving(Full(header)) as server, device(tmp_path, server.endpoint) as database:
        database["todos"].insert({"title": "x"})
        database.wait_for_status(lambda status: None not in (status.download_error, status.upload_error), 30)
        for error in (database.status.download_error, database.status.upload_error):
            assert isinstance(error, RefusedError)
            assert (error.status, error.retry_after) == (429, seconds)
