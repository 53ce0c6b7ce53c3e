"""Whatever is refused is counted and told of, but not for ever, and never with anything of a token."""

from __future__ import annotations

import json
import logging
import re
import time

import pytest

from headwater.api.limits import StreamLimits
from headwater.api.refusals import MOST_LINES, SECONDS, Refusals
from headwater.sync.request import RequestLimits
from tests.support.fix_api import SECRET, Endpoint, make_token
from tests.support.fix_logs import facts_said, line_of
from tests.support.memory_store import MemoryStore
from tests.unit.api.by_hand import StartEndpoint


def lines(caplog: pytest.LogCaptureFixture, what: str = "request refused") -> list[dict[str, object]]:
    """The facts of each line, whose text must be one line."""
    texts = [line_of(record) for record in caplog.records if record.name == "headwater.api.refusals"]
    assert all(len(text.splitlines()) == 1 and text.isascii() for text in texts)
    return facts_said(caplog, what)


def test_refused_token_is_logged_with_its_reason(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    expired = make_token(iat=int(time.time()) - 900, exp=int(time.time()) - 600)
    endpoint.post(token=expired, x_user_agent="powersync-js/2.1", user_agent="browser")
    (line,) = lines(caplog)
    assert re.fullmatch("[0-9a-f]{16}", str(line.pop("request_id")))
    assert line == {
        "code": "PSYNC_S2103",
        "route": "/sync/stream",
        "status": 401,
        "reason": "the token has expired",
        "method": "POST",
        "path": "/sync/stream",
        "address": "127.0.0.1",
        "user_agent": "powersync-js/2.1",
    }


def test_repeated_refusals_are_logged_once_and_counted(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        endpoint.post(token="nonsense")
    endpoint.http.get("/write-checkpoint2.json")
    endpoint.http.get("/nowhere")
    endpoint.http.get("/sync/stream")
    endpoint.post(b"{")
    endpoint.http.get("/api/admin/v1/status", headers={"authorization": "Token wrong"})
    assert [(line["code"], line["status"]) for line in lines(caplog)] == [
        ("PSYNC_S2101", 401),
        ("PSYNC_S2106", 401),
        ("PSYNC_S2002", 404),
        ("PSYNC_S2001", 405),
        ("PSYNC_S2001", 400),
    ]
    assert endpoint.refused() == {"PSYNC_S2101": 21, "PSYNC_S2106": 1, "PSYNC_S2002": 1, "PSYNC_S2001": 2}


def test_refused_user(
    memory_store: MemoryStore, start_endpoint: StartEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = start_endpoint(memory_store, streams=StreamLimits(1))
    with endpoint.stream() as stream:
        stream.completed()
        for user in ("u2", "u3", "u2"):
            assert endpoint.post(token=make_token(user)).status_code == 429
    assert [(line["code"], line["user_id"]) for line in lines(caplog)] == [("PSYNC_S2304", f"u{n}") for n in (2, 3)]
    assert endpoint.refused() == {"PSYNC_S2304": 3}


@pytest.mark.parametrize(
    "token",
    [
        make_token("private-sub", secret=SECRET[::-1], email="private-mail"),
        make_token("private-sub", alg="HS384", header={"kid": "private-kid"}),
        make_token("private-sub", header={"kid": "private-kid", "alg": "HS512"}, alg="HS512"),
        make_token("private-sub", aud="private-aud"),
        make_token("private-sub", iat="private-iat"),
        make_token("private-sub", iat=1_000_000_000, exp=1_999_999_999),
        make_token("private-sub", parameters="private-parameters"),
        "eyJhbGciOiJwcml2YXRlLWFsZyJ9.e30.AA",  # the alg is private-alg
    ],
)
@pytest.mark.parametrize("path", ["/sync/stream", "/write-checkpoint2.json", "/api/admin/v1/status"])
def test_token_is_never_logged(endpoint: Endpoint, caplog: pytest.LogCaptureFixture, token: str, path: str) -> None:
    caplog.set_level(logging.DEBUG)
    method, content = ("POST", b"{}") if path == "/sync/stream" else ("GET", None)
    headers = {"authorization": f"Token {token}"}
    response = endpoint.http.request(method, f"{path}?token={token}", content=content, headers=headers)
    assert response.status_code == 401
    told = "\n".join(line_of(record) for record in caplog.records if not record.name.startswith("http"))
    assert '"status": 401' in told
    assert "private" not in told
    assert "1999999999" not in told
    assert not any(part in told for part in token.split(".") if len(part) > 5)


def test_refusal_is_one_short_line(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.http.get("/%0A2026-01-01 ERROR forged%1b[2J%E2%80%A8" + "x" * 5_000, headers={"user-agent": "y" * 5_000})
    endpoint.post(json.dumps({"app_metadata": {"a\nb" + "z" * 100_000: 1}}).encode())
    found = lines(caplog)
    assert len(found) == 2
    assert all(len(json.dumps(line)) < 2_500 for line in found)


def test_internal_errors(endpoint: Endpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    memory_store.config = None
    for user in ("u1", "u2", "u1"):
        assert endpoint.post(token=make_token(user)).status_code == 503
    assert [line["user_id"] for line in lines(caplog)] == ["u1", "u2"]
    assert endpoint.refused() == {"PSYNC_S2302": 3}


def test_left_out(memory_store: MemoryStore, start_endpoint: StartEndpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint = start_endpoint(memory_store, requests=RequestLimits(max_buckets=2))
    memory_store.set_lookup(endpoint.membership("u1"), ['["l1"]', '["l2"]', '["l3"]'])
    memory_store.commit()
    for _ in range(3):
        with endpoint.stream(client_id="phone") as stream:
            stream.completed()
    (line,) = lines(caplog, "streams left out")
    assert (line["code"], line["user_id"], line["client_id"]) == ("PSYNC_S2305", "u1", "phone")
    assert line["subscriptions"] == 1
    assert "the 3 buckets of stream shared" in str(line["first"])
    assert endpoint.refused() == {"PSYNC_S2305": 3}


@pytest.fixture
def clock() -> list[float]:
    return [1_000.0]


def test_repeated_line_counts_those_left_out(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(now=lambda: clock[0])
    for _ in range(5):
        refusals.note("A", "u1", "refused", {})
    clock[0] += SECONDS - 1
    refusals.note("A", "u1", "refused", {})
    assert lines(caplog, "refused") == [{"code": "A", "user_id": "u1"}]
    clock[0] += 1
    refusals.note("A", "u1", "refused", {})
    assert lines(caplog, "refused")[1:] == [{"code": "A", "user_id": "u1", "not_told_since": 5}]
    clock[0] += SECONDS
    refusals.note("A", "u1", "refused", {})
    assert lines(caplog, "refused")[2:] == [{"code": "A", "user_id": "u1"}]
    assert refusals.counts() == {"A": 8}


def test_lines_are_limited_over_all_users(clock: list[float], caplog: pytest.LogCaptureFixture) -> None:
    refusals = Refusals(now=lambda: clock[0])
    for number in range(3 * MOST_LINES):
        refusals.note("A", f"u{number}", "refused", {})
    assert len(lines(caplog, "refused")) == MOST_LINES
    caplog.clear()
    clock[0] += SECONDS
    refusals.note("A", "late", "refused", {})
    assert [line["user_id"] for line in lines(caplog, "refused")] == ["late"]
    assert refusals.counts() == {"A": 3 * MOST_LINES + 1}


@pytest.mark.parametrize("letter", ["x", "\n", "é", "😀"], ids=["ascii", "control", "letters", "beyond"])
def test_closed_stream_is_one_short_line(endpoint: Endpoint, caplog: pytest.LogCaptureFixture, letter: str) -> None:
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    metadata = {f"{number}{letter * 2000}": letter * 2000 for number in range(30)}
    with endpoint.stream(client_id=letter * 200, app_metadata=metadata) as stream:
        stream.completed()
        endpoint.terminate()
        stream.to_the_end()
    endpoint.wait_for_the_end()
    (line,) = [line_of(record) for record in caplog.records if record.name == "headwater.api.streams.stream"]
    assert len(line.splitlines()) == 1
    assert len(line) < 20_000
    (facts,) = facts_said(caplog, "sync stream closed")
    assert facts["close_reason"] == "shutting down"
    assert isinstance(facts["app_metadata"], dict)
    assert len(facts["app_metadata"]) == 20
