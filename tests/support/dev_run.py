"""A running `headwater dev`, with all that it started."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.support.waiting import wait_until

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

    def leaves_nothing(self) -> None:
        """End it as Ctrl-C does, and see that it ends well and nothing outlives it."""
        assert self.end() == 0
        assert self.processes() == []
        assert list(self.temporary.iterdir()) == []
        assert "Traceback" not in self.text

    def kill(self) -> None:
        """End it and what it started, whatever state they are in."""
        self.process.kill()
        self.process.wait()
        for each in self.processes():
            with suppress(psutil.Error):
                each.kill()

    def wait_gone(self) -> None:
        wait_until(lambda: not self.processes(), "all that it started to be gone", STOP_SECONDS)


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


@contextmanager
def running(folder: Path, *arguments: str) -> Iterator[Run]:
    """Start one that has nothing but `folder`; what is left of it in the end is killed."""
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
