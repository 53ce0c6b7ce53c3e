"""The `headwater` command as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# Configuration of whoever runs the tests must not leak into them.
_CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "POWERSYNC_", "PS_"))}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of the command ended."""

    code: int
    out: str
    err: str


def command(*arguments: str | Path) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "headwater", *map(str, arguments)]


def environment(**changes: str) -> dict[str, str]:
    """The environment of a run."""
    return {**_CLEAN, **changes}


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
