"""Metrics of real processes: of an endpoint beside a replicator, of an endpoint alone, of a replicator alone."""

from __future__ import annotations

import json
import socket
import urllib.request
from contextlib import ExitStack
from functools import partial
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.one_device import sees
from tests.support.processes import Running
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

COUNTED = (
    "powersync_data_synced_bytes_total",
    "powersync_data_sent_bytes_total",
    "powersync_operations_synced_total",
)
REPLICATED = (
    "powersync_data_replicated_bytes_total",
    "powersync_rows_replicated_total",
    "powersync_transactions_replicated_total",
    "powersync_chunks_replicated_total",
)
LAG = "powersync_replication_lag_seconds"
SIZES = tuple(f"powersync_{what}_storage_size_bytes" for what in ("replication", "operation", "parameter"))


class Page:
    """The metrics of a process."""

    def __init__(self) -> None:
        self.port = free_port()
        self.of: dict[str, float] = {}

    def config(self, deployment: Deployment, port: int) -> dict[str, object]:
        return {**config_of(deployment, port), "telemetry": {"prometheus_port": self.port}}

    def there(self) -> bool:
        """Read it, if it is there. Of several with one name, the last."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                families = text_string_to_metric_families(answer.read().decode())
                self.of = {sample.name: sample.value for family in families for sample in family.samples}
        except OSError:
            return False
        return True

    def has(self, *names: str) -> bool:
        return self.there() and all(self.of.get(name, 0) > 0 for name in names)


def lines_of(running: Running) -> list[dict[str, Any]]:
    """Its log, each line an object."""
    return [json.loads(line) for line in running.output.splitlines()]


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id text primary key, body text)")
    source_db.execute("insert into notes select n::text, 'x' from generate_series(1, 30) n")
    return deploy(NOTES).start()


def test_metrics_of_endpoint_and_replicator(deployment: Deployment, launch: Launch) -> None:
    page, port = Page(), free_port()
    config = {**page.config(deployment, port), "system": {"logging": {"format": "json"}}}
    running = launch("api", config, "--unified")
    wait_until(page.there, "the endpoint")
    assert [page.of[name] for name in (*COUNTED, "headwater_commit_to_line_seconds_count")] == [0, 0, 0, 0]
    assert page.of["powersync_concurrent_connections"] == 0
    before = page.of["powersync_rows_replicated_total"]
    client = sees(port, partial(deployment.source.execute, "insert into notes values ('new', 'y')"))
    assert len(client.rows) == 31
    wait_until(lambda: page.has("headwater_commit_to_line_seconds_count"), "the change to be noted")
    assert page.of["powersync_operations_synced_total"] == 32, "with the CLEAR that a bucket begins with"
    assert 0 < page.of["powersync_data_sent_bytes_total"] < page.of["powersync_data_synced_bytes_total"]
    assert page.of["headwater_commit_to_line_seconds_count"] == 1
    assert page.of["headwater_commit_to_line_seconds_sum"] < 60
    wait_until(lambda: page.has(*REPLICATED, *SIZES), "what the replicator noted")
    wait_until(lambda: page.has() and page.of["powersync_rows_replicated_total"] > before, "the row to be counted")
    wait_until(lambda: page.has() and LAG in page.of, "the lag")
    running.wait_for("sync stream closed")
    (closed,) = [line for line in lines_of(running) if line["message"] == "sync stream closed"]
    assert (closed["user_id"], closed["route"], closed["close_reason"]) == ("ann", "/sync/stream", "client gone")
    assert closed["operations"] == 32
    assert closed.keys() >= {"request_id", "user_agent", "duration_ms", "bytes", "time", "level", "logger"}
    assert "eyJ" not in running.output, "as tokens begin"


def test_metrics_of_endpoint_alone(deployment: Deployment, launch: Launch) -> None:
    page, port = Page(), free_port()
    running = launch("api", {**page.config(deployment, port), "api": {"workers": 1, "http": {"max_connections": 2}}})
    wait_until(lambda: page.there() and LAG in page.of, "the endpoint, and the replicator's first look at its slot")
    assert not page.of.keys() & {*REPLICATED, *SIZES}
    assert page.of.keys() >= {*COUNTED, "powersync_concurrent_connections"}
    no_threads_for_connections(running, page)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", page.port), 5).close()
    with ExitStack() as stack:  # devices may come from anywhere, until the house is full
        *_, last = [stack.enter_context(socket.create_connection(("127.0.0.2", port), 5)) for _ in range(3)]
        assert last.recv(12) == b"HTTP/1.1 503"
        assert page.there(), "operators are let in all the same"


def no_threads_for_connections(running: Running, page: Page) -> None:
    process = psutil.Process(running.process.pid)
    assert page.there()
    before = process.num_threads()
    with ExitStack() as stack:
        for _ in range(15):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", page.port), 10))
            client.sendall(b"GET /metrics HTTP/1.1\r\nhost: here\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
        assert process.num_threads() == before


def test_metrics_of_replicator_alone(deployment: Deployment, launch: Launch) -> None:
    deployment.stop()
    page = Page()
    config = {**page.config(deployment, free_port()), "system": {"logging": {"format": "json"}}}
    running = launch("replicate", config)
    wait_until(page.there, "the replicator")
    assert [page.of[name] for name in REPLICATED[1:3]] == [0, 0]
    running.wait_for("following the stream")
    deployment.source.execute("insert into notes values ('new', 'y')")
    wait_until(lambda: page.has(*REPLICATED, *SIZES), "the row to be counted")
    wait_until(lambda: page.has() and LAG in page.of, "the lag")
    assert page.of["powersync_rows_replicated_total"] == 1
    assert "powersync_concurrent_connections" not in page.of
    streams = {line["stream"] for line in lines_of(running) if line["logger"].startswith("headwater.replication")}
    assert len(streams) == 1
    assert str(*streams).startswith(deployment.settings.slot_prefix)
    running.ask_to_end()
    assert running.wait() == 0
