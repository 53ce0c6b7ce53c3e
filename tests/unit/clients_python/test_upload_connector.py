"""`UploadConnector` against what may answer in place of the server, and against an app that fails to hear."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from headwater_client import REFUSALS, Database, Refusal, UploadConnector
from headwater_client.database import connector as connectors
from headwater_client.errors import ProtocolError, UnreachableError
from tests.support.quiet_http import http_server


@contextmanager
def answering(text: str, drip: float = 0.0) -> Iterator[str]:
    """A server that answers 200 with this text, whatever it is asked; its endpoint."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # who asked may leave
                for start in range(0, len(text), 10_000):
                    self.wfile.write(text[start : start + 10_000].encode())
                    time.sleep(drip)

    with http_server(Handler) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "device.db", {"todos": {"title": "text"}}) as opened:
        opened["todos"].insert({"id": "1"})
        opened["todos"].insert({"id": "2"})
        yield opened


@pytest.mark.parametrize(
    "text",
    [
        "<html>sign in to this network",
        "{}",
        "[]",
        '"ok"',
        '{"transactions": [{"last_op_id": 1}]}',
        '{"transactions": 2}',
    ],
)
def test_writes_stay_where_a_stranger_answers(database: Database, text: str) -> None:
    with answering(text) as endpoint, pytest.raises(ProtocolError):
        UploadConnector(endpoint, "t").upload_data(database)
    assert database.uploads_waiting == 2


def test_refusal_callback_that_fails(database: Database) -> None:
    heard: list[str] = []

    def hear(refusal: Refusal) -> None:
        heard.append(str(refusal))
        raise ValueError("no room on the screen")

    parked = [{"last_op_id": number, "error": {"description": f"reason {number}"}} for number in (1, 2)]
    with answering(json.dumps({"transactions": parked})) as endpoint:
        UploadConnector(endpoint, "t", hear).upload_data(database)
    assert heard == ["reason 1", "reason 2"]
    assert database.uploads_waiting == 0


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Database]:
    """A device that keeps refusals, with two writes."""
    tables = {"todos": {"title": "text"}, "upload_refusals": REFUSALS}
    with Database(tmp_path / "keeping.db", tables) as opened:
        opened["todos"].insert({"id": "1"})
        opened["todos"].insert({"id": "2"})
        yield opened


def test_refusals_of_several_sources_are_kept_until_it_is_known_that_they_were_settled(keeping: Database) -> None:
    def kept() -> list[object]:
        return [row["id"] for row in keeping.rows("SELECT id FROM upload_refusals ORDER BY id")]

    names = ["crm:1", "default:1"]
    parked = [{"dead_letter": name, "error": {"message": "no"}} for name in names]
    with answering(json.dumps({"transactions": parked})) as endpoint:
        UploadConnector(endpoint, "t").upload_data(keeping)
    assert kept() == names
    for complete, left in ((False, names), (True, ["crm:1"])):
        told = {"refused": [{"dead_letter": "crm:1"}], "complete": complete}
        with answering(json.dumps(told)) as endpoint:
            UploadConnector(endpoint, "t").check_refusals(keeping)
        assert kept() == left


@pytest.mark.parametrize("limit", ["_SECONDS", "_LONGEST_ANSWER"])
def test_endless_answer(database: Database, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    answer = json.dumps({"transactions": [{}, {}]}) + " " * 500_000
    with answering(answer, drip=0.005) as endpoint:
        monkeypatch.setattr(connectors, limit, 0.2 if limit == "_SECONDS" else 1000)
        with pytest.raises(UnreachableError, match="without end"):
            UploadConnector(endpoint, "t").upload_data(database)
    assert database.uploads_waiting == 2
