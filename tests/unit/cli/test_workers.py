"""What the parent of several processes of an endpoint makes for them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from headwater.cli.workers import WORKER, endpoint_children, this_worker
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
