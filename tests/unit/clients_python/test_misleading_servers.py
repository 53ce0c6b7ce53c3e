"""Servers that lie, break off or say the same for ever: a device shows nothing wrong, and does not ask without end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from headwater_client import ConnectOptions, Database, RawTable, Schema
from headwater_client.errors import ProtocolError, RefusedError
from tests.support.waiting import wait_until
from tests.unit.clients_python.little_server import (
    COMPLETE,
    App,
    Line,
    LittleServer,
    Start,
    checkpoint,
    noted_pauses,
    row,
    upload_all,
)


@pytest.fixture
def database(tmp_path: Path, start: Start) -> Iterator[Database]:  # whose end comes first
    kept = RawTable(clear="DELETE FROM kept")
    with Database(tmp_path / "device.db", Schema.of({"todos": {"title": "text"}, "kept": kept})) as opened:
        opened.execute("CREATE TABLE kept(id TEXT PRIMARY KEY, title TEXT)")
        yield opened


EAGER = ConnectOptions(retry_delay=0.01)


@pytest.mark.parametrize("data", ["{", "", '"\\'])
@pytest.mark.parametrize("table", ["todos", "kept"])
def test_row_that_is_not_json(database: Database, start: Start, data: str, table: str) -> None:
    server = start(LittleServer([checkpoint(), row(1, data, table), COMPLETE]))
    database.connect(App(server.endpoint), EAGER)
    database.wait_for_status(lambda status: isinstance(status.download_error, ProtocolError), 20)
    assert database.rows(f"SELECT * FROM {table}") == []
    server.lines = [checkpoint(checksum=2), row(1, data, table), row(2, '{"title": "right"}', table), COMPLETE]
    database.wait_for_first_sync(20)
    assert database.rows(f"SELECT id, title FROM {table}") == [{"id": "1", "title": "right"}]


@pytest.mark.parametrize(
    "lines",
    [
        [checkpoint(count=2**63)],
        [checkpoint(count=-1)],
        [checkpoint(priority=2**31 - 1)],
        [checkpoint(), {"partial_checkpoint_complete": {"priority": 10**30}}],
        [checkpoint(), row(2**63 - 1, "{}")],
        [checkpoint(), row(10**30, "{}")],
    ],
    ids=json.dumps,
)
def test_numbers_beyond_the_file(database: Database, start: Start, lines: list[Line]) -> None:
    server = start(LittleServer([*lines, COMPLETE]))
    database.connect(App(server.endpoint), EAGER)
    database.wait_for_status(lambda status: isinstance(status.download_error, ProtocolError), 20)
    assert not database.status.has_synced


@pytest.mark.parametrize(
    ("lines", "grows"),
    [
        ([checkpoint(checksum=7), row(1, "{}"), COMPLETE], True),
        ([checkpoint(), COMPLETE, {"data": 5}], True),
        ([{"token_expires_in": 0}], True),
        ([checkpoint()], False),
    ],
    ids=["wrong checksums", "nonsense", "always expired", "broken off in a download"],
)
def test_misleading_server_is_asked_less(
    database: Database, start: Start, monkeypatch: pytest.MonkeyPatch, lines: list[Line], grows: bool
) -> None:
    waits = noted_pauses(monkeypatch)
    little = LittleServer(lines)
    little.ended.set()
    server = start(little)
    database.connect(App(server.endpoint), EAGER)
    wait_until(lambda: len(waits) > 4, "five waits")
    assert (waits[4] > 8 * waits[0]) == grows


@pytest.mark.parametrize(
    ("token", "streams"), [(lambda _: "the same", 1), (str, 2)], ids=["the same token", "another token each time"]
)
def test_token_that_always_ends_soon(
    database: Database, start: Start, token: Callable[[int], str], streams: int
) -> None:
    ends_soon: Line = {"token_expires_in": 5}

    class Numbering(LittleServer):
        def line_up(self, handler: BaseHTTPRequestHandler) -> None:
            last = self.streams + 1 == streams
            self.lines = [checkpoint(), ends_soon, *([row(1, "{}"), ends_soon, COMPLETE] if last else [])]
            super().line_up(handler)

    server = start(Numbering([]))
    connector = App(server.endpoint, token=token)
    database.connect(connector, EAGER)
    database.wait_for_first_sync(20)
    wait_until(lambda: connector.fetched == 2, "a token")
    until = time.monotonic() + 0.3
    wait_until(lambda: server.streams > streams or time.monotonic() > until, "what should not come")
    assert (server.streams, connector.fetched) == (streams, 2)


@pytest.mark.parametrize("path", ["stream", "write checkpoint"])
def test_endless_answer(database: Database, start: Start, path: str) -> None:
    class Dripping(LittleServer):
        def line_up(self, handler: BaseHTTPRequestHandler) -> None:
            self._drip(handler) if path == "stream" else super().line_up(handler)

        def answer(self, handler: BaseHTTPRequestHandler, body: Line) -> None:
            self._drip(handler)

        def _drip(self, handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(503)
            handler.end_headers()
            while not self.ended.is_set():
                try:
                    handler.wfile.write(b"x" * 1024)
                except OSError:
                    return

    server = start(Dripping([checkpoint()]))
    database.connect(App(server.endpoint, upload_all), EAGER)
    database["todos"].insert({"title": "x"})
    database.wait_for_status(
        lambda status: isinstance(status.download_error if path == "stream" else status.upload_error, RefusedError),
        20,
    )


def test_server_that_always_knows_a_later_request(database: Database, start: Start) -> None:
    asked: list[int] = []

    def later(number: int) -> int:
        asked.append(number)
        return number + 1

    server = start(LittleServer([checkpoint()], later))
    database.connect(App(server.endpoint, upload_all), ConnectOptions(retry_delay=30, checkpoint_mode="requests"))
    database["todos"].insert({"title": "x"})
    database.wait_for_status(lambda status: isinstance(status.upload_error, ProtocolError), 20)
    assert len(asked) < 10


@pytest.mark.parametrize("escape", ["\\ud83d", "\\uDE00", "\\ud83d\\ud83d\\ude00"])
@pytest.mark.parametrize("table", ["todos", "kept"])
def test_half_a_surrogate_pair(database: Database, start: Start, escape: str, table: str) -> None:
    data = f'{{"title": "a{escape}b \\ud83d\\ude00 \\\\ud83d", "more": "c"}}'
    server = start(LittleServer([checkpoint(), row(1, data, table), COMPLETE]))
    database.connect(App(server.endpoint), EAGER)
    database.wait_for_first_sync(20)
    ((title,),) = [each.values() for each in database.rows(f"SELECT title FROM {table}")]
    whole = "\ufffd\U0001f600" if escape.endswith("\\ude00") else "\ufffd"
    assert title == f"a{whole}b \U0001f600 \\ud83d"


@pytest.mark.parametrize(("number", "read"), [(2**63 - 1, 2**63 - 1), (10**30, 1e30), (-(2**64), -(2.0**64))])
def test_number_beyond_a_column_is_a_real(database: Database, start: Start, number: int, read: float) -> None:
    server = start(LittleServer([checkpoint(), row(1, f'{{"title": {number}}}', "numbers"), COMPLETE]))
    database.execute("CREATE TABLE numbers(id TEXT PRIMARY KEY, title)")
    database.update_schema(Schema.of({"numbers": RawTable()}))
    database.connect(App(server.endpoint), EAGER)
    database.wait_for_first_sync(20)
    assert database.rows("SELECT title FROM numbers") == [{"title": read}]


def test_failing_upload(database: Database, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[int] = []

    class Failing(App):
        def upload_data(self, database: Database) -> None:
            failed.append(database.uploads_waiting)
            raise OSError("no backend")

    server = start(LittleServer([]))
    database.connect(Failing(server.endpoint), ConnectOptions(retry_delay=60, upload_throttle=0))
    database["todos"].insert({"title": "x"})
    database.wait_for_status(lambda status: status.upload_error is not None, 20)
    waited = threading.Event()
    for _ in range(20):
        database["todos"].insert({"title": "x"})
        waited.wait(0.01)
    assert failed == [1]
    server.lines = [{"token_expires_in": 3600}]
    database.connect(Failing(server.endpoint), EAGER)
    wait_until(lambda: len(failed) > 1, "the next connection")
