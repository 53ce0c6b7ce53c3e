"""Runs commands as somebody would who begins with nothing, and keeps them with their seconds, fit for a page."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SECONDS = 1800.0
_LOOK_SECONDS = 0.2
_END_SECONDS = 60.0
_PATH_OF_ALL = "/usr/local/bin:/usr/bin:/bin"
_PASSED_ON = re.compile(r"(?i)(PIP|UV|SSL|REQUESTS|CURL|NODE|npm_config)_\w+|\w+_proxy|LANG|LC_\w+")
"""Variables that say how this machine reaches packages."""

_URL = re.compile(r"\w+://(?:[^\s/@'\"]*@)?([^\s/:'\"]+)")
_NEAR = {"127.0.0.1", "localhost", "0.0.0.0"}  # noqa: S104 - compared, not listened on
_PATH = re.compile(
    r"(?<![\w.~:/])/(?!(?:var/lib|etc)/headwater)(?:usr|opt|root|home|tmp|var|dev|work|etc|run|proc|srv)(?:/[\w.+@%-]+)+"
)
_TOKEN = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+")


class TranscriptError(Exception):
    """A command failed, or is not fit for a page."""


@dataclass(slots=True)
class Transcript:
    """One way to begin, in a folder and a home of its own. `lines` are what is shown, `seconds` what it took."""

    folder: Path
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0
    _variables: dict[str, str] = field(default_factory=dict)
    _at: Path = field(init=False)

    def __post_init__(self) -> None:
        home = self.folder / "home"
        home.mkdir(parents=True)
        self._at = home
        kept = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
        settings = {"PIP_CONFIG_FILE": ".config/pip/pip.conf", "npm_config_userconfig": ".npmrc"}
        mirrors = {name: str(Path.home() / path) for name, path in settings.items() if (Path.home() / path).is_file()}
        self._variables = {
            **mirrors,
            **kept,
            "HOME": str(home),
            "PATH": _PATH_OF_ALL,
            "TMPDIR": str(home),
        }

    def say(self, text: str) -> None:
        """A line that says what is done in words."""
        self.lines.append(f"# {text}")

    def enter(self, folder: str, *, shown: bool = True) -> None:
        """Go to a folder, as `cd`."""
        self._at = (self._at / folder).resolve()
        if shown:
            self.lines.append(f"$ cd {folder}")

    def use(self, programs: Path, shown: str) -> None:
        """Have programs of a folder found first, as activating an environment does."""
        self._variables["PATH"] = f"{programs}:{self._variables['PATH']}"
        self.lines.append(f"$ {shown}")

    def give(self, **variables: str) -> None:
        """Set variables that are not shown."""
        self._variables |= variables

    def run(self, command: str, *, shown: str | None = None) -> str:
        """Run a command to its end, and show it. Returns what it printed. Raises TranscriptError when it fails."""
        with self._started(command) as (process, log):
            took = _awaited(lambda: process.poll() is not None)
            said = log.read_text()
        if process.returncode != 0:
            raise TranscriptError(f"{command} ended with {process.returncode}:\n{said}")
        self._show(shown or command, took)
        return said

    @contextlib.contextmanager
    def running(self, command: str, until: str) -> Iterator[str]:
        """Start a command, go on when it has said `until`, and end it by Ctrl-C. Gives what it said until then."""
        with self._started(f"exec {command}") as (process, log):
            took = _awaited(lambda: until in log.read_text() or process.poll() is not None)
            if process.poll() is not None:
                raise TranscriptError(f"{command} did not say {until!r}:\n{log.read_text()}")
            self._show(f"{command} &", took)
            yield log.read_text()
            process.send_signal(signal.SIGINT)
            _awaited(lambda: process.poll() is not None)
            if process.returncode != 0:
                raise TranscriptError(f"{command} ended with {process.returncode}:\n{log.read_text()[-2000:]}")
        self.lines.append("^C")

    @contextlib.contextmanager
    def _started(self, command: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """A command and the file that it writes to. Unless it has ended it is ended with what it has started."""
        number, name = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(number, "wb") as out:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command], cwd=self._at, env=self._variables, stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            yield process, Path(name)
        finally:
            for number in (signal.SIGINT, signal.SIGKILL):
                if process.poll() is None:
                    os.killpg(process.pid, number)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_END_SECONDS)

    def _show(self, command: str, took: float) -> None:
        self.seconds += took
        seconds = f"   # {took:.0f} s" if took >= 1 else ""
        self.lines.append(f"$ {clean(command, self.folder)}{seconds}")


def _awaited(reached: Callable[[], bool]) -> float:
    """The seconds that something took, without those in which this process was stopped. Raises TranscriptError."""
    took, last = 0.0, time.monotonic()
    while not reached():
        time.sleep(_LOOK_SECONDS)
        now = time.monotonic()
        took += min(now - last, 10 * _LOOK_SECONDS)
        last = now
        if took > _SECONDS:
            raise TranscriptError(f"it took more than {_SECONDS:.0f} s")
    return took


def clean(text: str, folder: Path) -> str:
    """Text without what only this machine has: paths, names of hosts, addresses of registries, tokens."""
    text = text.replace(str(folder / "home"), "~").replace(str(folder), "~")
    text = _TOKEN.sub("eyJ…", text.replace(socket.gethostname(), "host"))
    text = _URL.sub(lambda found: found[0] if found[1] in _NEAR else "https://…", text)
    return _PATH.sub("/…", text)


def check_clean(text: str, forbidden: Sequence[str]) -> None:
    """Raises TranscriptError if a page names something of this machine."""
    hosts = [found[1] for value in os.environ.values() for found in _URL.finditer(value) if found[1] not in _NEAR]
    for each in (socket.gethostname(), str(Path.home()), *hosts, *forbidden):
        if len(each) > 3 and re.search(rf"(?<![\w-]){re.escape(each)}(?![\w-])", text):
            raise TranscriptError("the page names something of this machine")
    if _PATH.search(text):
        raise TranscriptError(f"the page has a path of this machine: {_PATH.findall(text)}")


def check_room(programs: Sequence[str], ports: Sequence[int]) -> None:
    """Raises TranscriptError when a program is missing, or something listens on one of the ports."""
    if missing := [each for each in programs if shutil.which(each, path=_PATH_OF_ALL) is None]:
        raise TranscriptError(f"{', '.join(missing)} not found in {_PATH_OF_ALL}")
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                raise TranscriptError(f"port {port} is needed: {error.strerror}") from error


def copied(source: Path, to: Path) -> Path:
    """A copy of a file in a folder."""
    to.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(source, to / source.name))
