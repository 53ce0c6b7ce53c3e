"""Named places where a test can kill the process.

`HEADWATER_FAILPOINT=name:n` kills the process with SIGKILL at the n-th passage (the first, without n), after appending
a line with the name to the file in `HEADWATER_FAILPOINT_LOG`. Without the variable, a passage costs one comparison.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

_NAME, _, _COUNT = os.environ.get("HEADWATER_FAILPOINT", "").partition(":")
_passages = 0


def passing(name: str) -> None:
    """Called where the place `name` is reached."""
    if name == _NAME:
        _die(name)


def _die(name: str) -> None:
    global _passages  # noqa: PLW0603 - a counter for the whole process is the point
    _passages += 1
    if _passages < int(_COUNT or "1"):
        return
    log = os.environ.get("HEADWATER_FAILPOINT_LOG")
    if log:
        with Path(log).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
    os.kill(os.getpid(), signal.SIGKILL)
