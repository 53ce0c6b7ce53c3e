"""Processes that tests start, kill, pause and end, with what they write."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.command import environment
from tests.support.waiting import wait_until

DEADLINE = 60.0

hit: Counter[str] = Counter()
"""The failpoints that processes died at."""


@dataclass(frozen=True)
class Running:
    """A process that was started, and what it writes."""

    process: subprocess.Popen[bytes]
    log: Path
    failpoints: Path = Path(os.devnull)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, text: str, times: int = 1) -> None:
        """Wait until it has said this so often."""

        def said() -> bool:
            found = self.output.count(text) >= times
            assert found or self.alive, (
                f"ended with {self.process.returncode}, not having said {text!r}:\n{self.output}"
            )
            return found

        wait_until(said, f"it to say {text!r}", DEADLINE)

    def wait_ready(self, port: int, path: str = "/probes/startup", seconds: float = DEADLINE) -> None:
        """Wait until it answers at a port."""

        def answers() -> bool:
            assert self.alive, f"ended with {self.process.returncode}:\n{self.output}"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30).close()
            except OSError:
                return False
            return True

        wait_until(answers, f"an answer at port {port}", seconds)

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

    def pause_when(self, condition: Callable[[], bool], what: str) -> None:
        """Pause it at a moment at which the condition holds."""

        def paused() -> bool:
            self.pause()
            if condition():
                return True
            self.resume()
            return False

        wait_until(paused, what)

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
        hit[failpoint] += 1


def wait_gone(processes: set[psutil.Process]) -> None:
    """Wait until none of these runs any more."""
    _, left = psutil.wait_procs(processes, DEADLINE)
    assert not left, f"still running: {left}"


def start(
    arguments: Sequence[str],
    log: Path,
    *,
    failpoints: Path = Path(os.devnull),
    cwd: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> Running:
    """Start a process that writes to a log."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd, env=environment(**(variables or {}))
        )
    return Running(process, log, failpoints)
