"""Processes of an endpoint: how many suit a machine, and what their parent makes for them."""

from __future__ import annotations

import os
import tempfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from headwater.cli.api import upload_share
from headwater.cli.dev import Address
from headwater.cli.workers import (
    WORKER,
    answer_at,
    endpoint_children,
    most_workers,
    this_worker,
    usable_cores,
    worker_count,
)
from tests.support.quiet_http import http_server
from tests.unit.config.configs import MINIMAL, load


def test_socket_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("long" * 20)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    several = MINIMAL + "host: 127.0.0.1\nport: 0\napi: {workers: 2}\n"
    with endpoint_children(load(tmp_path, several), ["x"], {}) as children:
        monkeypatch.setenv(WORKER, children[1].environment[WORKER])
        worker = this_worker()
        assert worker is not None
        assert worker.directory.is_dir()
        assert len(os.fsencode(worker.directory / "worker-256.sock")) < 104
    assert not worker.directory.exists()


@pytest.mark.parametrize(
    ("written", "cores"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("9900000 100000", 8),
        ("", 8),
    ],
)
def test_container_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    (tmp_path / "cpu.max").write_text(written, encoding="ascii")
    assert usable_cores(tmp_path / "cpu.max") == cores
    assert usable_cores(tmp_path / "none") == 8


@pytest.mark.parametrize(
    ("cores", "memory", "workers"),
    [(1, "max", 1), (2, "max", 1), (4, "max", 3), (64, "max", 4), (64, str(600 << 20), 2), (64, str(100 << 20), 1)],
)
def test_processes_per_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, memory: str, workers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    (tmp_path / "memory.max").write_text(memory + "\n", encoding="ascii")
    assert most_workers(tmp_path / "none", tmp_path / "memory.max") == workers
    assert most_workers(tmp_path / "none", tmp_path / "none") == max(1, min(cores - 1, 4))


def test_postgres_store_has_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(3)), raising=False)
    elsewhere = MINIMAL.replace(
        "{type: sqlite, path: data}", "{type: postgresql, uri: 'postgresql://headwater:x@store/store'}"
    )
    assert worker_count(load(tmp_path, elsewhere)) == 1
    assert worker_count(load(tmp_path, elsewhere + "api: {workers: 7}")) == 7


def test_uploads_are_shared_out(tmp_path: Path) -> None:
    written = "upload: {role: app, tables: {todos: }, max_connections: 8, max_per_user: 5}"
    whole = load(tmp_path, MINIMAL + written).upload
    share = upload_share(whole, 4)
    assert share is not None
    assert (share.max_connections, share.max_per_user) == (2, 2)
    assert upload_share(whole, 1) == whole


def test_an_answer_without_a_body() -> None:
    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

    with http_server(Empty) as port:
        assert answer_at("127.0.0.1", port, "/demo/", 5.0) == b""
        assert Address("127.0.0.1", port).answers()
    assert answer_at("127.0.0.1", port, "/demo/", 5.0) is None
