"""A process that is told to stop: it takes nothing new, and what is open ends in order, little by little."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from headwater.api.http.limits import HttpLimits
from headwater.telemetry.log_facts import facts_of
from tests.support.fix_api import Endpoint, make_token
from tests.support.memory_store import MemoryStore

STREAMS = 30


def test_streams_end_whole_and_not_all_at_once(
    start_endpoint: Callable[..., Endpoint], memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    endpoint = start_endpoint(memory_store, http=HttpLimits(drain_seconds=3))
    with ExitStack() as stack:
        streams = [stack.enter_context(endpoint.stream(f"u{number}")) for number in range(STREAMS)]
        for stream in streams:
            stream.completed()
        endpoint.terminate()
        for stream in streams:
            stream.to_the_end()
    endpoint.wait_for_the_end()
    ends = [record.created for record in caplog.records if facts_of(record).get("close_reason") == "shutting down"]
    assert len(ends) == STREAMS
    assert max(ends) - min(ends) > 0.2


def test_while_streams_end_nobody_else_comes_in(
    start_endpoint: Callable[..., Endpoint], memory_store: MemoryStore
) -> None:
    endpoint = start_endpoint(memory_store, http=HttpLimits(drain_seconds=300))
    with ExitStack() as stack:
        streams = [stack.enter_context(endpoint.stream(f"u{number}")) for number in range(STREAMS)]
        for stream in streams:
            stream.completed()
        endpoint.terminate()
        deadline = time.monotonic() + 60
        while _listens(endpoint):
            assert time.monotonic() < deadline, "the listening socket is closed"
        assert endpoint.open_streams() > 0


def _listens(endpoint: Endpoint) -> bool:
    try:
        socket.create_connection(endpoint.address, timeout=5).close()
    except OSError:
        return False
    return True


_SERVER = """
import socket, sys
from headwater.api.app import ApiSettings, create_app
from headwater.api.auth.keys import StaticKeys, parse_key
from headwater.api.http.limits import HttpLimits
from headwater.api.http.server import serve_app
from tests.support.fix_api import AUDIENCE, RULES, PlayedHead, jwk
from tests.support.memory_store import MemoryStore
store = MemoryStore()
store.replace_config(RULES)
store.put("unrelated", "1")
store.commit()
settings = ApiSettings(StaticKeys((parse_key(jwk()),)), frozenset({AUDIENCE}), http=HttpLimits(drain_seconds=300))
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
serve_app(create_app(settings, store, PlayedHead()), [listening])
"""


@contextmanager
def process() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An endpoint that takes its time to end, as a process of its own, and its address."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": "."},
    ) as running:
        assert running.stdout is not None
        try:
            yield running, f"http://127.0.0.1:{int(running.stdout.readline())}"
        finally:
            running.kill()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(second: signal.Signals) -> None:
    headers = {"authorization": f"Token {make_token()}"}
    with process() as (running, address), ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=address, timeout=60))
        answers = [
            stack.enter_context(client.stream("POST", "/sync/stream", json={}, headers=headers)) for _ in range(STREAMS)
        ]
        streams = [answer.iter_lines() for answer in answers]  # kept, since who lets go of one closes its stream
        for stream in streams:
            assert json.loads(next(stream))
        running.send_signal(signal.SIGTERM)
        _until_it_drains(client)
        assert running.poll() is None, "streams are open"
        running.send_signal(second)
        status = running.wait(60)  # of the 300 seconds that streams have to end
        assert running.stderr is not None
        assert (status, running.stderr.read()) == (0, "")


def _until_it_drains(client: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            client.get("/probes/liveness")
        except httpx.HTTPError:
            return
        assert time.monotonic() < deadline, "it takes no connection any more"
