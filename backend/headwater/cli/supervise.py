"""Supervises child processes: restarts them when they crash, ends them together, leaves none behind."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headwater.errors import HeadwaterError


def stop_on_signals(*others: signal.Signals) -> threading.Event:
    """An event that SIGTERM, SIGINT and the others set; the work ends at its next safe point."""
    stop = threading.Event()
    _on_signals(stop.set, *others)
    return stop


def _on_signals(act: Callable[[], None], *others: signal.Signals) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, *others):
        signal.signal(number, lambda *_: act())


_log = logging.getLogger(__name__)

_FIRST_DELAY, _LONGEST_DELAY = 0.5, 30.0
_STEADY_SECONDS = 60.0  # a child that ran this long begins with the shortest delay again
_GRACE_SECONDS = 30.0
_LEFT_BEHIND_SECONDS = 5.0  # time for processes that a dead child started to end by themselves
_SILENT_SECONDS = 30.0  # a child that has begun to beat, and does not for so long, hangs
_LONGEST_STEP = 1.0  # of counted silence: when we did not run ourselves, children are not to blame
SUPERVISED = "HEADWATER_SUPERVISED"
"""Set in the environment of a child, whose supervisor has already printed the config's warnings."""

EXIT_STOP = 1
"""Exit code of a process that needs a person to act. It has printed why, and is not restarted."""

EXIT_USAGE = 2
"""Exit code for an invalid command line."""


class ChildStoppedError(HeadwaterError):
    """A part of the service ended with an error that a restart would not fix. It has printed why."""

    code = "HW_7002"


class _Link:
    """A socket between us and a child, which has it as its stdin: it beats there, and sees our end, even if we are
    killed. `theirs` is its end of it."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._begun = False
        self._silent = 0.0
        self._asked = time.monotonic()

    def silent(self) -> float:
        """Seconds since the child beat; 0 until it has begun to. Ask often."""
        now = time.monotonic()
        step, self._asked = min(now - self._asked, _LONGEST_STEP), now
        self._silent += step
        with contextlib.suppress(BlockingIOError):
            if self._ours.recv(4096):
                self._begun, self._silent = True, 0.0
        return self._silent if self._begun else 0.0

    def close(self) -> None:
        self._ours.close()


@dataclass
class Child:
    """A child process: its name, its command line, and when to start or restart it.

    `at_first` is added to the command line of the first start only. `environment` is added to ours; secrets belong
    there, because every user can read command lines.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    at_first: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    due: float = 0.0
    delay: float = _FIRST_DELAY
    _link: _Link | None = None

    def start(self) -> None:
        self._link = _Link()
        with self._link.theirs as stdin:
            self.process = subprocess.Popen(
                [*self.command, *self.at_first],
                env={**os.environ, **self.environment, SUPERVISED: "1"},
                stdin=stdin.fileno(),
                start_new_session=True,  # we pass the terminal's Ctrl-C on ourselves
            )
        self.started, self.at_first = time.monotonic(), ()

    def check(self) -> None:
        """Start it when it is due. Raises ChildStoppedError when it must not be restarted."""
        now = time.monotonic()
        if self.process is None:
            if now >= self.due:
                self.start()
            return
        code = self.process.poll()
        if code is None:
            if self._link is not None and self._link.silent() > _SILENT_SECONDS:
                _log.warning("the %s hangs: it is killed", self.name)
                self.process.kill()
            return
        self._end_group()
        self._forget()
        if code in {EXIT_STOP, EXIT_USAGE}:
            raise ChildStoppedError(f"the {self.name} ended", "see the message above", "fix the cause and start again")
        self.delay = _FIRST_DELAY if now - self.started > _STEADY_SECONDS else min(self.delay * 2, _LONGEST_DELAY)
        self.due = now + self.delay
        _log.warning("the %s ended with code %d and is restarted in %.1f s", self.name, code, self.delay)

    def end(self) -> None:
        """Ask it to end; `wait` waits for that."""
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
        """End the processes that the child leaves behind: Spark's JVM ends a moment later than the process that started
        it."""
        deadline = time.monotonic() + _LEFT_BEHIND_SECONDS
        group = self.process.pid if self.process is not None else 0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while group and time.monotonic() < deadline:
                os.killpg(group, 0)
                time.sleep(0.02)
            os.killpg(group, signal.SIGKILL)

    def _forget(self) -> None:
        if self._link is not None:
            self._link.close()
        self.process = self._link = None


def supervise(children: Sequence[Child], stop: threading.Event | None = None) -> None:
    """Run the children until SIGTERM or SIGINT, or until one must not be restarted (ChildStoppedError).

    A second signal is passed on as another SIGTERM, at which an endpoint does not wait for its streams. If the caller
    passes `stop`, it is responsible for setting it at the first. Call it in the main thread, which alone may handle
    signals.
    """
    stop = stop or stop_on_signals()
    try:
        while not stop.is_set():
            for child in children:
                child.check()
            stop.wait(0.1)
    finally:
        _on_signals(lambda: _end_all(children))
        _end_all(children)
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in children:
            child.wait(deadline)


def _end_all(children: Sequence[Child]) -> None:
    """Ask the children to end."""
    for child in children:
        child.end()


@contextmanager
def executed_anew(changed: Callable[[], bool], every_seconds: float) -> Iterator[None]:
    """Within the context, ask again and again, unless `every_seconds` is 0, whether anything has changed that this
    process works by. Then it ends as by SIGTERM, at some time in the next quarter of that so that not all of a service
    do so together, and after the context executes the same command anew. Enter it before the environment is read."""
    if not every_seconds:
        yield
        return
    done, again = threading.Event(), threading.Event()
    environment = dict(os.environ)  # what a process is told by it is taken out once it was read

    def look() -> None:
        while not done.wait(every_seconds):
            if changed():
                if not done.wait(random.uniform(0, every_seconds / 4)):
                    _log.info("the connections have changed: the process starts anew")
                    again.set()
                    os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=look, name="connections", daemon=True).start()
    try:
        yield
    finally:
        done.set()
    if again.is_set():
        command = [each for each in sys.argv[1:] if each != "--take-slot"]  # that is done
        os.execve(sys.executable, [sys.executable, "-m", "headwater", *command], environment)


def end_with_supervisor() -> Callable[[], None]:
    """In a child: end as by SIGTERM when the supervisor has ended, even if it was killed. Returns a heartbeat for the
    supervisor, which kills a child that has begun to beat and stops. Does nothing in other processes. Call this
    once."""
    if os.environ.pop(SUPERVISED, None) is None:
        return lambda: None
    supervisor = socket.socket(fileno=0)

    def wait() -> None:
        with contextlib.suppress(ConnectionResetError):  # it has ended without reading all beats
            supervisor.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)

    def beat() -> None:
        with contextlib.suppress(OSError):  # full, or the supervisor has ended
            supervisor.send(b".", socket.MSG_DONTWAIT)

    threading.Thread(target=wait, name="supervisor", daemon=True).start()
    return beat
