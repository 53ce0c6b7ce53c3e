"""The page of a web device: the stock web SDK, built with the tools and the packages of the demo app.

`python -m tests.support.web_page` builds it ahead of the tests.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from headwater.embedded.node import find_node
from tests.support.node_process import FOLDER as NODE
from tests.support.node_process import ScriptError, npm_ci
from tests.support.one_at_a_time import alone

FOLDER: Final = Path(__file__).parents[1] / "e2e" / "web"
DEMO: Final = Path(__file__).parents[2] / "clients" / "web"
_BUILT: Final = FOLDER / "dist"


def built_page() -> Path:
    """The folder with `index.html`; nothing to do where that is newer than what it is made from."""
    with alone(FOLDER / "vite.config.mjs"):
        npm_ci(DEMO)
        if not _is_fresh():
            _build()
    return _BUILT


def _is_fresh() -> bool:
    page = _BUILT / "index.html"
    sources = [*FOLDER.glob("*.*"), NODE / "commands.mjs", NODE / "encode.mjs", DEMO / "package-lock.json"]
    return page.exists() and page.stat().st_mtime_ns >= max(source.stat().st_mtime_ns for source in sources)


def _build() -> None:
    node = find_node()
    command = [*node.npm, "exec", "--", "vite", "build", "--config", str(FOLDER / "vite.config.mjs")]
    done = subprocess.run(
        command, cwd=DEMO, env=node.environment(os.environ), capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        raise ScriptError(f"the page of web devices could not be built:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    built_page()
