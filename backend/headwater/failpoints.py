"""Named places where a test can kill the process.

`HEADWATER_FAILPOINT=name:n` kills the process with SIGKILL at the n-th hit (the first, without n), after appending a
line with the name to the file in `HEADWATER_FAILPOINT_LOG`. Without the variable, a hit costs one comparison.
"""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

_NAME, _, _COUNT = os.environ.get("HEADWATER_FAILPOINT", "").partition(":")
_hits = count(1)


def failpoint(name: str) -> None:
    """Die here if the environment asks for it."""
    if name == _NAME and next(_hits) >= int(_COUNT or "1"):
        if log := os.environ.get("HEADWATER_FAILPOINT_LOG"):
            with Path(log).open("a", encoding="utf-8") as file:
                file.write(f"{name}\n")
        os.kill(os.getpid(), signal.SIGKILL)
