"""The command `headwater dev` as a person has it: it starts, it ends, and it leaves nothing behind. What it offers
meanwhile is tested with the demo app."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import psycopg
import pytest

from tests.support.dev_run import STOP_SECONDS, running


@pytest.mark.long
@pytest.mark.spark
def test_kept_data_needs_no_new_snapshot(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with running(tmp_path / "1", "--port", "0", "--rows", "1000", "--keep", str(kept)) as run:
        with psycopg.connect(run.wait_for(r"postgresql://\S+")) as conn:
            conn.execute("update lists set name = 'Kept' where name = 'Weekend together'")
        assert run.end(signal.SIGTERM) == 0
    with running(tmp_path / "2", "--port", "0", "--keep", str(kept)) as run:
        with psycopg.connect(run.wait_for(r"postgresql://\S+")) as conn:
            assert conn.execute("select count(*) from lists where name = 'Kept'").fetchall() == [(1,)]
        assert "snapshot" not in run.text
        with running(tmp_path / "3", "--port", "0", "--keep", str(kept)) as second:
            assert second.process.wait(STOP_SECONDS) == 1
            assert "another headwater dev uses this directory" in second.text
        assert run.end() == 0
        assert run.processes() == []


def test_interrupted_start_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0") as run:
        run.wait_for("starting Postgres")
        assert run.end() == 0
        assert run.processes() == []
        assert list(run.temporary.iterdir()) == []


def test_killed_dev_takes_postgres_along(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0", "--rows", "1000") as run:
        run.wait_for("Application startup complete")
        run.process.kill()
        run.process.wait(STOP_SECONDS)
        run.wait_gone()


def test_dev_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with running(tmp_path, "--port", port) as run:
            assert run.process.wait(STOP_SECONDS) == 1
            assert f"can't listen on port {port}: Address already in use" in run.text
            assert "set another `--port`" in run.text
            assert "Traceback" not in run.text
            assert list(run.temporary.iterdir()) == []
