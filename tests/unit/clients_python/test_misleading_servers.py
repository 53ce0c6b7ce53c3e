"""Servers that lie, break off or say the same for ever: a device shows nothing wrong, and does not ask without end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from headwater_client import ConnectOptions, Credentials, Database, RawTable, Schema
from headwater_client.errors import ProtocolError, RefusedError
from tests.support.waiting import wait_until
from tests.unit.clients_python.little_server import Line, LittleServer, serving
from tests.unit.clients_python.pauses import noted_pauses


class App:
    """A connector that counts how often it is asked for a token, and uploads nothing."""

    def __init__(self, endpoint: str, token: Callable[[int], str] = str) -> None:
        self._endpoint, self._token, self.fetched = endpoint, token, 0

    def fetch_credentials(self) -> Credentials:
        self.fetched += 1
        return Credentials(self._endpoint, self._token(self.fetched))

    def upload_data(self, database: Database) -> None:
        pass


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    kept = RawTable(clear="DELETE FROM kept")
    with Database(tmp_path / "device.db", Schema.of({"todos": {"title": "text"}, "kept": kept})) as opened:
        opened.execute("CREATE TABLE kept(id TEXT PRIMARY KEY, title TEXT)")
        yield opened


def checkpoint(*, checksum: int = 1, count: int = 1, priority: int = 3) -> Line:
    bucket = {"bucket": "b", "checksum": checksum, "count": count, "priority": priority}
    return {"checkpoint": {"last_op_id": "9", "streams": [], "buckets": [bucket]}}


def row(number: int, data: str, table: str = "todos") -> Line:
    op = {
        "op_id": str(number), "op": "PUT", "object_type": table, "object_id": "1", "subkey": "s", "checksum": 1,
        "data": data,
    }  # fmt: skip
    return {"data": {"bucket": "b", "data": [op]}}


COMPLETE: Line = {"checkpoint_complete": {"last_op_id": "9"}}
EAGER = ConnectOptions(retry_delay=0.01)


@pytest.mark.parametrize("data", ["{", "", '"\\'])
@pytest.mark.parametrize("table", ["todos", "kept"])
def test_a_row_that_is_not_json_is_an_error_and_leaves_the_table_readable(
    database: Database, data: str, table: str
) -> None:
    with serving(LittleServer([checkpoint(), row(1, data, table), COMPLETE])) as server:
        database.connect(App(server.endpoint), EAGER)
        database.wait_for_status(lambda status: isinstance(status.download_error, ProtocolError), 20)
        assert database.rows(f"SELECT * FROM {table}") == []
        server.lines = [checkpoint(checksum=2), row(1, data, table), row(2, '{"title": "right"}', table), COMPLETE]
        database.wait_for_first_sync(20)
        assert database.rows(f"SELECT id, title FROM {table}") == [{"id": "1", "title": "right"}]
        database.disconnect()


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
def test_numbers_that_no_file_can_hold_are_not_of_the_protocol(database: Database, lines: list[Line]) -> None:
    with serving(LittleServer([*lines, COMPLETE])) as server:
        database.connect(App(server.endpoint), EAGER)
        database.wait_for_status(lambda status: isinstance(status.download_error, ProtocolError), 20)
        assert not database.status.has_synced
        database.disconnect()


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
def test_a_server_that_misleads_is_asked_less_and_less(
    database: Database, monkeypatch: pytest.MonkeyPatch, lines: list[Line], grows: bool
) -> None:
    waits = noted_pauses(monkeypatch)
    little = LittleServer(lines)
    little.ended.set()
    with serving(little) as server:
        database.connect(App(server.endpoint), EAGER)
        wait_until(lambda: len(waits) > 4, "five waits")
        database.disconnect()
    assert (waits[4] > 8 * waits[0]) == grows


@pytest.mark.parametrize(
    ("token", "streams"), [(lambda _: "the same", 1), (str, 2)], ids=["the same token", "another token each time"]
)
def test_tokens_that_are_always_about_to_end_are_asked_for_once(
    database: Database, token: Callable[[int], str], streams: int
) -> None:
    ends_soon: Line = {"token_expires_in": 5}

    class Numbering(LittleServer):
        def line_up(self, handler: BaseHTTPRequestHandler) -> None:
            last = self.streams + 1 == streams
            self.lines = [checkpoint(), ends_soon, *([row(1, "{}"), ends_soon, COMPLETE] if last else [])]
            super().line_up(handler)

    with serving(Numbering([])) as server:
        connector = App(server.endpoint, token)
        database.connect(connector, EAGER)
        database.wait_for_first_sync(20)
        wait_until(lambda: connector.fetched == 2, "a token")
        until = time.monotonic() + 0.3
        wait_until(lambda: server.streams > streams or time.monotonic() > until, "what should not come")
        assert (server.streams, connector.fetched) == (streams, 2)
        database.disconnect()


@pytest.mark.parametrize("path", ["stream", "write checkpoint"])
def test_of_an_answer_without_end_the_beginning_is_read(database: Database, path: str) -> None:
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

    class Uploading(App):
        def upload_data(self, database: Database) -> None:
            for each in database.crud_transactions():
                each.complete()

    with serving(Dripping([checkpoint()])) as server:
        database.connect(Uploading(server.endpoint), EAGER)
        database["todos"].insert({"title": "x"})
        database.wait_for_status(
            lambda status: isinstance(status.download_error if path == "stream" else status.upload_error, RefusedError),
            20,
        )
        database.disconnect()


def test_a_server_that_always_knows_a_later_request_is_not_asked_without_end(database: Database) -> None:
    asked: list[int] = []

    def later(number: int) -> int:
        asked.append(number)
        return number + 1

    class Uploading(App):
        def upload_data(self, database: Database) -> None:
            for each in database.crud_transactions():
                each.complete()

    with serving(LittleServer([checkpoint()], later)) as server:
        database.connect(Uploading(server.endpoint), ConnectOptions(retry_delay=30, checkpoint_mode="requests"))
        database["todos"].insert({"title": "x"})
        database.wait_for_status(lambda status: isinstance(status.upload_error, ProtocolError), 20)
        assert len(asked) < 10
        database.disconnect()


@pytest.mark.parametrize("escape", ["\\ud83d", "\\uDE00", "\\ud83d\\ud83d\\ude00"])
@pytest.mark.parametrize("table", ["todos", "kept"])
def test_half_of_a_surrogate_pair_is_read_as_what_it_is_not(database: Database, escape: str, table: str) -> None:
    data = f'{{"title": "a{escape}b \\ud83d\\ude00 \\\\ud83d", "more": "c"}}'
    with serving(LittleServer([checkpoint(), row(1, data, table), COMPLETE])) as server:
        database.connect(App(server.endpoint), EAGER)
        database.wait_for_first_sync(20)
        ((title,),) = [each.values() for each in database.rows(f"SELECT title FROM {table}")]
        whole = "\ufffd\U0001f600" if escape.endswith("\\ude00") else "\ufffd"
        assert title == f"a{whole}b \U0001f600 \\ud83d"
        database.disconnect()


@pytest.mark.parametrize(("number", "read"), [(2**63 - 1, 2**63 - 1), (10**30, 1e30), (-(2**64), -(2.0**64))])
def test_a_number_that_no_column_holds_is_a_real_in_a_raw_table_too(
    database: Database, number: int, read: float
) -> None:
    with serving(LittleServer([checkpoint(), row(1, f'{{"title": {number}}}', "numbers"), COMPLETE])) as server:
        database.execute("CREATE TABLE numbers(id TEXT PRIMARY KEY, title)")
        database.update_schema(Schema.of({"numbers": RawTable()}))
        database.connect(App(server.endpoint), EAGER)
        database.wait_for_first_sync(20)
        assert database.rows("SELECT title FROM numbers") == [{"title": read}]
        database.disconnect()


def test_an_upload_that_fails_is_not_repeated_with_each_write(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []

    class Failing(App):
        def upload_data(self, database: Database) -> None:
            failed.append(database.uploads_waiting)
            raise OSError("no backend")

    with serving(LittleServer([])) as server:
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
        database.disconnect()
