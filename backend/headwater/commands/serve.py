"""`headwater serve`: the replicator and the endpoint as child processes, watched over and ended together."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.commands.replicate import stop_on_signals
from headwater.errors import HeadwaterError

_log = logging.getLogger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS = 60.0  # a child that ran this long begins with the shortest delay again
_GRACE_SECONDS = 30.0

EXIT_STOP = 1
"""Exit code of a child that a person has to help: it is not started again."""


class ChildStoppedError(HeadwaterError):
    """A part of the service ended with an error that starting it again would not mend."""

    code = "HW_7002"


@dataclass
class Child:
    """One child process: its name, its command line, and when to start it (again)."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    due: float = 0.0
    delay: float = _FIRST_DELAY

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, start_new_session=True
        )  # the terminal's Ctrl-C is ours to pass on
        self.started = time.monotonic()

    def look(self) -> None:
        """Start it when it is due. Raises ChildStoppedError when it ended for good."""
        now = time.monotonic()
        if self.process is None:
            if now >= self.due:
                self.start()
            return
        code = self.process.poll()
        if code is None:
            return
        self.process = None
        if code == EXIT_STOP:
            raise ChildStoppedError(f"the {self.name} ended", "see the message above", "mend the cause and start again")
        self.delay = _FIRST_DELAY if now - self.started > _STEADY_SECONDS else min(self.delay * 2, _LONGEST_DELAY)
        self.due = now + self.delay
        _log.warning("the %s ended with code %d and is started again in %.1f s", self.name, code, self.delay)

    def end(self) -> None:
        """Ask it to end; `wait` sees that it does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, deadline: float) -> None:
        if self.process is None:
            return
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _log.warning("the %s did not end in time and is killed", self.name)
            self.process.kill()
            self.process.wait()


def supervise(children: Sequence[Child]) -> None:
    """Run the children until SIGTERM or SIGINT, or until one of them ends for good (ChildStoppedError)."""
    stop = threading.Event()
    stop_on_signals(stop)
    try:
        while not stop.is_set():
            for child in children:
                child.look()
            stop.wait(0.1)
    finally:
        for child in children:
            child.end()
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in children:
            child.wait(deadline)


def run(arguments: Sequence[str], *, replicator: bool = True, api: bool = True) -> None:
    """`arguments` are the config options, as the children take them too."""
    headwater = [sys.executable, "-m", "headwater"]
    children = []
    if replicator:
        children.append(Child("replicator", [*headwater, "replicate", *arguments]))
    if api:
        children.append(Child("endpoint", [*headwater, "api", *arguments]))
    supervise(children)
