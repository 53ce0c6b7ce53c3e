"""A shell for the blocks of a page: one folder, one environment, and what is only an example in it replaced."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from tests.support.command import environment

_SERVE = re.compile(r"headwater serve\b.*")
_STOP_SECONDS = 60.0


@dataclass
class Shell:
    """`replaced` are texts of the page and what stands for them here; `port` is that of the service."""

    folder: Path
    replaced: Mapping[str, str]
    port: int
    variables: Mapping[str, str] = field(default_factory=dict)
    _served: list[subprocess.Popen[bytes]] = field(default_factory=list)

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
            each.send_signal(signal.SIGINT)
            try:
                each.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()

    def answers(self) -> bool:
        """Whether the service is ready."""
        assert all(each.poll() is None for each in self._served), (self.folder / "serve.log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/probes/readiness", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return environment(PATH=path, **self.variables)

    def _bash(self, lines: list[str]) -> str:
        if any(line.startswith("curl ") for line in lines) and shutil.which("curl") is None:
            pytest.skip("needs curl, which the page uses")
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _serve(self, line: str) -> None:
        with (self.folder / "serve.log").open("wb") as log:
            command = ["bash", "-c", f"exec {line}"]
            process = subprocess.Popen(command, cwd=self.folder, env=self._environment(), stdout=log, stderr=log)
        self._served.append(process)


def _statements(code: str) -> list[str]:
    """The statements of a text, which end with a semicolon at the end of a line, outside of $$."""
    found, at = [], ""
    for line in code.splitlines():
        at += f"{line}\n"
        if at.count("$$") % 2 == 0 and re.search(r";\s*(--.*)?$", line):
            found.append(at)
            at = ""
    return [*found, at] if at.strip() else found
