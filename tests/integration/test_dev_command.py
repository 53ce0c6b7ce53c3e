"""The command `headwater dev` as a person has it: it comes up, it ends, and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

START_SECONDS = 150.0
STOP_SECONDS = 60.0
_MARK = "HEADWATER_TEST_RUN"


@dataclass
class Run:
    """A running `headwater dev`. All it starts bears `mark` in its environment; `temporary` is where it may leave
    files."""

    process: subprocess.Popen[bytes]
    output: Path
    temporary: Path
    mark: str

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def wait_for(self, pattern: str) -> str:
        """What the pattern found in the output, once it is there."""
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(pattern, self.text)):
            assert self.process.poll() is None, f"it ended:\n{self.text}"
            assert time.monotonic() < deadline, f"no {pattern}:\n{self.text}"
            time.sleep(0.05)
        return found[0]

    def end(self, number: int = signal.SIGINT) -> int:
        """Its exit code after a signal."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def processes(self) -> list[psutil.Process]:
        """All that it started, and itself."""
        return [each for each in psutil.process_iter() if _environment(each).get(_MARK) == self.mark]

    def kill(self) -> None:
        """End it and what it started, whatever state they are in."""
        self.process.kill()
        self.process.wait()
        for each in self.processes():
            with suppress(psutil.Error):
                each.kill()

    def wait_gone(self) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        while left := self.processes():
            assert time.monotonic() < deadline, f"still there: {left}"
            time.sleep(0.05)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Run]:
    folder.mkdir(exist_ok=True)
    output = folder / "output"
    temporary = Path(tempfile.mkdtemp(prefix="hw-"))  # a short name: sockets do not take the long ones of tmp_path
    environment = {**os.environ, "TMPDIR": str(temporary), _MARK: str(folder)}
    command = [str(Path(sys.executable).with_name("headwater")), "dev", *arguments]
    with output.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    run = Run(process, output, temporary, str(folder))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        stack.callback(run.kill)
        yield run


@pytest.mark.spark
def test_it_comes_up_and_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0", "--rows", "1000") as run:
        page = run.wait_for(r"http://127\.0\.0\.1:\d+/demo/")
        users = httpx.get(f"{page}users").json()
        assert [user["name"] for user in users[:2]] == ["Ada", "Ben"]
        assert httpx.get(page.removesuffix("demo/") + "probes/readiness").status_code == 200
        with psycopg.connect(run.wait_for(r"postgresql://\S+")) as conn:
            assert conn.execute("select active from pg_replication_slots").fetchall() == [(True,)]
        assert run.end() == 0
        assert run.processes() == []
        assert list(run.temporary.iterdir()) == []
        assert "Traceback" not in run.text


@pytest.mark.long
@pytest.mark.spark
def test_what_is_kept_is_there_the_next_time_without_another_snapshot(tmp_path: Path) -> None:
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
            assert "another headwater dev works in this directory" in second.text
        assert run.end() == 0
        assert run.processes() == []


def test_stopped_while_it_starts_it_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0") as run:
        run.wait_for("starting Postgres")
        assert run.end() == 0
        assert run.processes() == []
        assert list(run.temporary.iterdir()) == []


def test_killed_it_takes_its_postgres_and_its_children_along(tmp_path: Path) -> None:
    with running(tmp_path, "--port", "0", "--rows", "1000") as run:
        run.wait_for("Application startup complete")
        run.process.kill()
        run.process.wait(STOP_SECONDS)
        run.wait_gone()


def test_a_port_in_use_is_said_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with running(tmp_path, "--port", port) as run:
            assert run.process.wait(STOP_SECONDS) == 1
            assert f"can't listen on port {port}" in run.text
            assert "Traceback" not in run.text
            assert list(run.temporary.iterdir()) == []
