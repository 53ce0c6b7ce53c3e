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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from headwater.api.limits import HttpLimits
from headwater.telemetry.log_facts import facts_of
from tests.support.fix_api import Endpoint, Stream, make_token
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until
from tests.unit.api.by_hand import StartEndpoint

STREAMS = 30


@contextmanager
def open_streams(endpoint: Endpoint) -> Iterator[list[Stream]]:
    with ExitStack() as stack:
        streams = [stack.enter_context(endpoint.stream(f"u{number}")) for number in range(STREAMS)]
        for stream in streams:
            stream.completed()
        yield streams


def test_streams_end_whole_and_spread(
    start_endpoint: StartEndpoint, memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headwater.api.streams.stream")
    endpoint = start_endpoint(memory_store, http=HttpLimits(drain_seconds=3))
    with open_streams(endpoint) as streams:
        endpoint.terminate()
        for stream in streams:
            stream.to_the_end()
    endpoint.wait_for_the_end()
    ends = [record.created for record in caplog.records if facts_of(record).get("close_reason") == "shutting down"]
    assert len(ends) == STREAMS
    assert max(ends) - min(ends) > 0.2


def test_draining_process_accepts_no_connection(start_endpoint: StartEndpoint, memory_store: MemoryStore) -> None:
    endpoint = start_endpoint(memory_store, http=HttpLimits(drain_seconds=300))

    def refuses() -> bool:
        try:
            socket.create_connection(endpoint.address, timeout=5).close()
        except OSError:
            return True
        return False

    with open_streams(endpoint):
        endpoint.terminate()
        wait_until(refuses, "the listening socket to be closed")
        assert endpoint.open_streams() > 0


_SERVER = """
import socket, sys
from headwater.api.app import ApiSettings, create_app
from headwater.api.auth.keys import parse_key
from headwater.api.auth.key_ring import KeyRing
from headwater.api.limits import HttpLimits
from headwater.api.http.server import serve_app
from tests.support.fix_api import AUDIENCE, RULES, PlayedHead, jwk
from tests.support.memory_store import MemoryStore
store = MemoryStore()
store.replace_config(RULES)
store.put("unrelated", "1")
store.commit()
http = HttpLimits(drain_seconds=float(sys.argv[1]))
settings = ApiSettings(KeyRing((parse_key(jwk()),)), frozenset({AUDIENCE}), http=http)
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
serve_app(create_app(settings, store, PlayedHead()), [listening])
"""


@contextmanager
def process(drain_seconds: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An endpoint as a process of its own, and its address."""
    command = [sys.executable, "-c", _SERVER, str(drain_seconds)]
    env = {**os.environ, "PYTHONPATH": "."}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) as running:
        assert running.stdout is not None
        try:
            yield running, f"http://127.0.0.1:{int(running.stdout.readline())}"
        finally:
            running.kill()


@contextmanager
def streams_of(address: str, count: int) -> Iterator[tuple[httpx.Client, list[Iterator[str]]]]:
    headers = {"authorization": f"Token {make_token()}"}
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(base_url=address, timeout=60))
        asked = [client.stream("POST", "/sync/stream", json={}, headers=headers) for _ in range(count)]
        streams = [stack.enter_context(each).iter_lines() for each in asked]
        for stream in streams:
            assert "checkpoint" in json.loads(next(stream))
        yield client, streams


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_second_signal_ends_it_at_once(second: signal.Signals) -> None:
    with process(drain_seconds=300) as (running, address), streams_of(address, STREAMS) as (client, _):
        running.send_signal(signal.SIGTERM)
        _until_it_drains(client)
        assert running.poll() is None, "streams are open"
        running.send_signal(second)
        status = running.wait(60)  # of the 300 seconds that streams have to end
        assert running.stderr is not None
        assert (status, running.stderr.read()) == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_streams_and_process_in_order(number: signal.Signals) -> None:
    with process(drain_seconds=5) as (running, address):
        with streams_of(address, 1) as (_, (lines,)):
            running.send_signal(number)
            assert list(lines)
        status = running.wait(60)
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
