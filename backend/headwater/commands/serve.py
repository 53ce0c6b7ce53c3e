"""`headwater serve`: the replicator and the endpoint as child processes, watched over and ended together."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.commands.signals import stop_on_signals
from headwater.commands.waiting import wait_for_source
from headwater.config import ServiceConfig
from headwater.errors import HeadwaterError
from headwater_rules.compile import compile_config

_log = logging.getLogger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS = 60.0  # a child that ran this long begins with the shortest delay again
_GRACE_SECONDS = 30.0
_SUPERVISED = "HEADWATER_SUPERVISED"

EXIT_STOP = 1
"""Exit code of a process that a person has to help. It said why, and is not started again."""

EXIT_USAGE = 2
"""Exit code of a command line that is wrong."""


class ChildStoppedError(HeadwaterError):
    """A part of the service ended with an error that starting it again would not mend. It has said why itself."""

    code = "HW_7002"


@dataclass
class Child:
    """One child process: its name, its command line, and when to start it (again).

    `environment` is added to ours: what is secret goes there, for a command line can be read by every user.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    due: float = 0.0
    delay: float = _FIRST_DELAY

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            env={**os.environ, **self.environment, _SUPERVISED: "1"},
            stdin=subprocess.PIPE,  # closes when we go, however we go: see end_with_supervisor
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
        )
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
        self._forget()
        if code in {EXIT_STOP, EXIT_USAGE}:
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
        self._forget()

    def _forget(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None


def supervise(children: Sequence[Child], stop: threading.Event | None = None) -> None:
    """Run the children until SIGTERM or SIGINT, or until one of them ends for good (ChildStoppedError).

    A `stop` of the caller's own is set by whom the caller likes: the signals are then left alone.
    """
    if stop is None:
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


def end_with_supervisor() -> None:
    """In a child: end as by SIGTERM when the supervisor is gone, even if it was killed."""
    if os.environ.pop(_SUPERVISED, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="supervisor", daemon=True).start()


def run(
    config: ServiceConfig,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    source_timeout: float = 30.0,
    replicator: bool = True,
    api: bool = True,
) -> None:
    """Serve until told to stop. What is wrong with rules or source is said here, before any process is started.

    `arguments` and `environment` lead the children to the same config.
    """
    stop = threading.Event()
    stop_on_signals(stop)
    headwater = [sys.executable, "-m", "headwater"]
    children = []
    if replicator:
        tables = compile_config(config.sync_text()).plan.tables()
        wait_for_source(config.source(), tables, stop, source_timeout)
        # Started again while the source is away, it must not end the endpoint: it waits for as long as it takes.
        command = [*headwater, "replicate", "--source-timeout", "0", *arguments]
        children.append(Child("replicator", command, environment))
    if api:
        children.append(Child("endpoint", [*headwater, "api", *arguments], environment))
    supervise(children, stop)
