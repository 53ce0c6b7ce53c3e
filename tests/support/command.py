"""The `headwater` command: as a process of its own, and in the process of the test, which takes a second less."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from headwater.cli import main as cli
from headwater.cli import options

# Configuration of whoever runs the tests must not leak into them.
_CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("HEADWATER_", "POWERSYNC_", "PS_", "OTEL_"))
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of the command ended."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]
"""The command as a fixture runs it."""


def command(*arguments: str | Path) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "headwater", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """The environment of a run."""
    return {**_CLEAN, **changes}


def output_of(*program: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """What a program prints, within two minutes; it has to succeed."""
    done = subprocess.run(program, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def headwater(*arguments: str | Path, cwd: Path | None = None, seconds: float = 120.0, **changes: str) -> Outcome:
    """Run it to its end."""
    done = subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment(**changes),
        timeout=seconds,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def headwater_here(*arguments: str | Path, cwd: Path | None = None, **changes: str) -> Outcome:
    """The same without a process."""
    out, err, code = _Stream(), _Stream(), 0
    with (
        contextlib.chdir(cwd or Path.cwd()),
        mock.patch.object(os, "environ", environment(**changes)),
        mock.patch.object(sys, "argv", ["headwater", *map(str, arguments)]),
        # it would take pytest's handlers away
        mock.patch.object(cli, "set_up_logging"),
        mock.patch.object(options, "set_up_logging"),
        _signals_kept(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            code = int(str(ended.code or 0))
    return Outcome(code, out.text(), err.text())


class _Stream(io.TextIOWrapper):
    """What a command writes, as text or as bytes."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        return bytes(self.buffer.getvalue()).decode()  # type: ignore[attr-defined]  # it is the one from above


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
