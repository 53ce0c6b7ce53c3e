"""Child processes, watched over: started again when they crash, ended together, never left behind."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headwater.cli.signals import stop_on_signals
from headwater.errors import HeadwaterError

_log = logging.getLogger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS = 60.0  # a child that ran this long begins with the shortest delay again
_GRACE_SECONDS = 30.0
_LEFT_BEHIND_SECONDS = 5.0  # what a dead child started has this long to follow it
SUPERVISED = "HEADWATER_SUPERVISED"
"""Set in the environment of a child, whose supervisor has said already what there is to say of the config."""

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

    `at_first` is added to the command line the first time only, and `environment` to ours: what is secret goes there,
    for a command line can be read by every user.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    at_first: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    due: float = 0.0
    delay: float = _FIRST_DELAY

    def start(self) -> None:
        self.process = subprocess.Popen(
            [*self.command, *self.at_first],
            env={**os.environ, **self.environment, SUPERVISED: "1"},
            stdin=subprocess.PIPE,  # closes when we go, however we go: see end_with_supervisor
            start_new_session=True,  # the terminal's Ctrl-C is ours to pass on
        )
        self.started, self.at_first = time.monotonic(), ()

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
        self._end_group()
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
        self._end_group()
        self._forget()

    def _end_group(self) -> None:
        """See to what the child leaves behind: Spark's JVM takes a moment longer than the process that started it."""
        deadline = time.monotonic() + _LEFT_BEHIND_SECONDS
        group = self.process.pid if self.process is not None else 0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while group and time.monotonic() < deadline:
                os.killpg(group, 0)
                time.sleep(0.02)
            os.killpg(group, signal.SIGKILL)

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
    if os.environ.pop(SUPERVISED, None) is None:
        return

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="supervisor", daemon=True).start()
