"""Every request has an id, which client and log are told, and is counted by its route."""

from __future__ import annotations

import logging

import pytest

from tests.support.fix_api import Endpoint
from tests.support.fix_logs import facts_said


def counts(endpoint: Endpoint) -> dict[tuple[str, str], int]:
    requests = endpoint.server.endpoint.requests
    return {key: count for key, count in requests.counts().items() if count and not key[0].startswith("/probes")}


def test_request_counters(endpoint: Endpoint) -> None:
    for number in range(3):
        endpoint.http.get(f"/nowhere/{number}")
    endpoint.write_checkpoint()
    endpoint.http.get("/write-checkpoint2.json")
    endpoint.http.get("/sync/stream")
    for number in range(3):
        endpoint.http.get(f"/api/nowhere/{number}")
    endpoint.http.options("/sync/stream", headers={"origin": "http://a", "access-control-request-method": "POST"})
    with endpoint.stream() as stream:
        stream.completed()
        assert counts(endpoint) == {
            ("unknown", "4xx"): 3,
            ("/write-checkpoint2.json", "2xx"): 1,
            ("/write-checkpoint2.json", "4xx"): 1,
            ("/sync/stream", "4xx"): 1,
            ("/api", "4xx"): 3,
            ("/sync/stream", "2xx"): 1,
        }


def test_request_id(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refused = endpoint.post(token="nonsense").headers["x-request-id"]
    answered = endpoint.write_checkpoint("ann")
    assert refused != answered.headers["x-request-id"]
    (line,) = facts_said(caplog, "request refused")
    assert line["request_id"] == refused
    request_id = answered.headers["x-request-id"]
    (line,) = [facts for facts in facts_said(caplog, "request answered") if facts["request_id"] == request_id]
    assert line.pop("duration_ms") in range(10_000)
    assert str(line.pop("user_agent")).startswith("python-httpx")
    assert line == {
        "request_id": request_id,
        "user_id": "ann",
        "status": 200,
        "route": "/write-checkpoint2.json",
        "method": "GET",
        "path": "/write-checkpoint2.json",
        "address": "127.0.0.1",
    }
