"""A shell for the blocks of a page: one folder, one environment, and what is only an example in it replaced."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from tests.support.command import environment
from tests.support.processes import Running, start

_SERVE = re.compile(r"headwater serve\b.*")


@dataclass
class Shell:
    """`replaced` are texts of the page and what stands for them here; `port` is that of the service."""

    folder: Path
    replaced: Mapping[str, str]
    port: int
    variables: Mapping[str, str] = field(default_factory=dict)
    _served: list[Running] = field(default_factory=list)

    def real(self, text: str) -> str:
        """The text with what stands for its examples."""
        for example, here in self.replaced.items():
            text = text.replace(example, here)
        return text

    def run(self, code: str) -> str:
        """Run a block of shell, and return what it printed. A service that it starts goes on in the background until
        `close`."""
        waiting: list[str] = []
        printed = ""
        for line in self.real(code).splitlines():
            if _SERVE.match(line):
                printed += self._bash(waiting)
                waiting = []
                self._serve(line)
            else:
                waiting.append(line)
        return printed + self._bash(waiting)

    def sql(self, code: str, dsn: str) -> None:
        """Run statements one by one, as psql does."""
        with psycopg.connect(dsn, autocommit=True) as conn:
            for statement in _statements(self.real(code)):
                conn.execute(statement.encode())

    def close(self) -> None:
        """End the services."""
        for each in self._served:
            each.ask_to_end()
            try:
                each.wait()
            except subprocess.TimeoutExpired:
                each.kill()

    def wait_ready(self, seconds: float) -> None:
        """Wait until the service is ready."""
        self._served[-1].wait_ready(self.port, "/probes/readiness", seconds)

    def _variables(self) -> dict[str, str]:
        return {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", **self.variables}

    def _bash(self, lines: list[str]) -> str:
        if any(line.startswith("curl ") for line in lines) and shutil.which("curl") is None:
            pytest.skip("needs curl, which the page uses")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
            cwd=self.folder,
            env=environment(**self._variables()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _serve(self, line: str) -> None:
        command, log = ["bash", "-c", f"exec {line}"], self.folder / "serve.log"
        self._served.append(start(command, log, cwd=self.folder, variables=self._variables()))


def _statements(code: str) -> list[str]:
    """The statements of a text, which end with a semicolon at the end of a line, outside of $$."""
    found, at = [], ""
    for line in code.splitlines():
        at += f"{line}\n"
        if at.count("$$") % 2 == 0 and re.search(r";\s*(--.*)?$", line):
            found.append(at)
            at = ""
    return [*found, at] if at.strip() else found
