"""Real `headwater` processes that a test kills, pauses and ends; the session's summary names the failpoints hit."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.support.command import command, environment

DEADLINE = 60.0

_ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)
_hit: Counter[str] = Counter()


@dataclass(frozen=True)
class Running:
    """A process that was started, and what it writes."""

    process: subprocess.Popen[bytes]
    log: Path
    failpoints: Path

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until it has said this so often."""
        deadline = time.monotonic() + DEADLINE
        while self.output.count(text) < times:
            assert self.alive, f"ended with {self.process.returncode}, not having said {text!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"did not say {text!r}:\n{self.output}"
            time.sleep(0.01)

    def family(self) -> set[psutil.Process]:
        """The processes below it."""
        try:
            return set(psutil.Process(self.process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return set()

    def kill(self) -> None:
        """End it as by `kill -9`. When this returns, nothing is left of it."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        self.process.terminate()

    def wait(self, seconds: float = DEADLINE) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def died_at(self, failpoint: str) -> None:
        """Wait for its death, and see that it was at this failpoint."""
        code = self.wait(2 * DEADLINE)
        assert code == -signal.SIGKILL, f"ended with {code}:\n{self.output}"
        assert self.failpoints.read_text(encoding="utf-8").split() == [failpoint]
        _hit[failpoint] += 1


def wait_gone(processes: set[psutil.Process]) -> None:
    """Wait until none of these runs any more."""
    _, left = psutil.wait_procs(processes, DEADLINE)
    assert not left, f"still running: {left}"


Launch = Callable[..., Running]


def _start(folder: Path, arguments: list[str], failpoint: str) -> Running:
    number = next(_numbers)
    running = Running(
        subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=(log := (folder / f"process-{number}.log").open("wb")),
            stderr=log,
            cwd=_ROOT,
            env=environment(
                HEADWATER_FAILPOINT=failpoint,
                HEADWATER_FAILPOINT_LOG=str(folder / f"failpoints-{number}"),
            ),
        ),
        folder / f"process-{number}.log",
        folder / f"failpoints-{number}",
    )
    log.close()
    return running


def _finish(running: Running) -> None:
    if running.alive:
        running.resume()
        running.ask_to_end()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
    print(f"{' '.join(map(str, running.process.args))}\n{running.output}")  # type: ignore[arg-type]  # a list of text


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """`launch("replicate", config)` runs the command, with options if some are given; `failpoint="name:2"` lets it die
    at the second passage there."""
    started: list[Running] = []

    def start(name: str, config: Mapping[str, object], *options: str, failpoint: str = "") -> Running:
        path = tmp_path / f"headwater-{next(_numbers)}.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        started.append(_start(tmp_path, command(name, "--config", path, *options), failpoint))
        return started[-1]

    yield start
    for running in reversed(started):
        _finish(running)


@pytest.fixture
def launch_module(tmp_path: Path) -> Iterator[Launch]:
    """`launch_module("tests.support.x", "argument")` runs a module of the tests as a process of its own."""
    started: list[Running] = []

    def start(module: str, *arguments: str, failpoint: str = "") -> Running:
        started.append(_start(tmp_path, [sys.executable, "-m", module, *arguments], failpoint))
        return started[-1]

    yield start
    for running in reversed(started):
        _finish(running)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several workers tells what it saw."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["failpoints"] = dict(_hit)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """What a worker saw; one that crashed tells nothing."""
    _hit.update(getattr(node, "workeroutput", {}).get("failpoints", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which failpoints processes of this session died at."""
    if _hit:
        named = ", ".join(f"{name} ({count})" for name, count in sorted(_hit.items()))
        terminalreporter.write_line(f"processes died at these failpoints: {named}")
