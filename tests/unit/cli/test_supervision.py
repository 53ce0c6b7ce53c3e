"""Child processes live and end with their supervisor, however either of them goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headwater.cli.supervise import Child
from tests.support.waiting import wait_until

SUPERVISOR = """
import sys
from headwater.cli import supervise

folder = sys.argv[1]
supervise._SILENT_SECONDS = 1.0
commands = [[sys.executable, "-c", code, folder] for code in sys.argv[2:]]
children = [supervise.Child(name, command) for name, command in zip("ab", commands)]
try:
    supervise.supervise(children)
except supervise.ChildStoppedError as error:
    print(error, file=sys.stderr)
    sys.exit(1)
"""
NOTED = "import os, pathlib, sys; pathlib.Path(sys.argv[1], f'NAME-{os.getpid()}').touch(); "
STAYS = NOTED + "import signal; signal.pause()"
STAYS_WITH_US = NOTED + "import threading; from headwater.cli import supervise; supervise.end_with_supervisor(); "
STAYS_WITH_US += "threading.Event().wait()"

DEADLINE = 60.0


def alive(pid: int) -> bool:
    """Whether it runs; one that has ended and that nobody has asked about does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Run:
    """A supervisor with up to two children, each of which notes its start in a file."""

    def __init__(self, folder: Path, *codes: str) -> None:
        named = [code.replace("NAME", name) for name, code in zip("ab", codes, strict=False)]
        self._folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, str(folder), *named],
            stderr=subprocess.PIPE,
            text=True,
        )

    def started(self, name: str) -> list[int]:
        """Process ids of each start of a child."""
        return [int(path.name.split("-")[1]) for path in self._folder.glob(f"{name}-*")]

    def said(self) -> str:
        """What it has written, once it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(*codes: str) -> Run:
        runs.append(Run(tmp_path, *codes))
        return runs[-1]

    yield start
    for each in runs:
        if each.process.poll() is None:
            each.end(signal.SIGTERM)
        if each.process.stderr is not None:
            each.process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_all(run: Callable[..., Run], number: int) -> None:
    service = run(STAYS, STAYS)
    wait_until(lambda: bool(service.started("a") and service.started("b")), "both to start")
    assert service.end(number) == 0
    assert not any(alive(pid) for pid in service.started("a") + service.started("b"))


def test_second_signal(run: Callable[..., Run]) -> None:
    waits = "import signal, time; told = []; signal.signal(signal.SIGTERM, lambda *_: told.append(1)); " + NOTED
    waits += "[time.sleep(0.01) for _ in iter(lambda: len(told), 1)]; "
    waits += "pathlib.Path(sys.argv[1], f'told-{os.getpid()}').touch(); "
    waits += "[time.sleep(0.01) for _ in iter(lambda: len(told), 2)]"
    service = run(waits)
    wait_until(lambda: bool(service.started("a")), "the start")
    service.process.send_signal(signal.SIGTERM)
    wait_until(lambda: bool(service.started("told")), "the first signal to arrive")
    assert service.end(signal.SIGINT) == 0
    assert "is killed" not in service.said()


def test_crashed_child(run: Callable[..., Run]) -> None:
    service = run(STAYS, STAYS)
    wait_until(lambda: bool(service.started("a") and service.started("b")), "both to start")
    os.kill(service.started("a")[0], signal.SIGKILL)
    wait_until(lambda: len(service.started("a")) == 2, "the second start")
    assert len(service.started("b")) == 1


def test_hanging_child(run: Callable[..., Run]) -> None:
    beats = "from headwater.cli import supervise; import time; beat = supervise.end_with_supervisor(); beat(); " + NOTED
    service = run(beats + "[(beat(), time.sleep(0.05)) for _ in iter(int, 1)]", STAYS)  # the other never began
    wait_until(lambda: bool(service.started("a") and service.started("b")), "both to start")
    hung = service.started("a")[0]
    os.kill(hung, signal.SIGSTOP)
    wait_until(lambda: len(service.started("a")) == 2, "another one")
    assert not alive(hung)
    assert len(service.started("b")) == 1


def test_child_that_needs_a_person(run: Callable[..., Run]) -> None:
    service = run(STAYS, NOTED + "print('mend it', file=sys.stderr); sys.exit(1)")
    assert service.process.wait(DEADLINE) == 1
    assert len(service.started("b")) == 1
    assert not any(alive(pid) for pid in service.started("a"))


def test_killed_supervisor(run: Callable[..., Run]) -> None:
    service = run(STAYS_WITH_US)
    wait_until(lambda: bool(service.started("a")), "the start")
    service.end(signal.SIGKILL)
    wait_until(lambda: not alive(service.started("a")[0]), "the child to end too")


def test_left_behind_processes(run: Callable[..., Run]) -> None:
    leaves = NOTED + "import subprocess; p = subprocess.Popen(['sleep', '600']); "
    leaves += "pathlib.Path(sys.argv[1], f'left-{p.pid}').touch(); sys.exit(1)"
    service = run(leaves)
    assert service.process.wait(DEADLINE) == 1
    (left,) = service.started("left")
    wait_until(lambda: not alive(left), "what was left to end")


def test_told_at_first() -> None:
    child = Child("a", [sys.executable, "-c", "import sys; sys.exit(10 + len(sys.argv))"], at_first=["once"])
    codes = []
    for _ in range(2):
        child.start()
        assert child.process is not None
        codes.append(child.process.wait(DEADLINE))
        child.wait(0.0)
    assert codes == [12, 11]
