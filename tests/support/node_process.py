"""Runs the scripts of `tests/e2e/node`: installs their packages once, and drives a program over its pipes."""

from __future__ import annotations

import functools
import json
import os
import queue
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from headwater.embedded.node import find_node
from tests.support.one_at_a_time import alone

FOLDER: Final = Path(__file__).parents[1] / "e2e" / "node"
Json = str | int | float | bool | list["Json"] | dict[str, "Json"] | None

_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy")
_END: Final = None


class ScriptError(AssertionError):
    """The script answered with an error, gave no answer in time, or ended; carries the end of its log."""


def npm_ci(folder: Path) -> None:
    """Install what the lock file of `folder` says; nothing to do where that is installed already."""
    lock, installed = folder / "package-lock.json", folder / "node_modules" / ".package-lock.json"
    with alone(lock):
        _npm_ci(folder, lock, installed)


def _npm_ci(folder: Path, lock: Path, installed: Path) -> None:
    if installed.exists() and installed.stat().st_mtime_ns >= lock.stat().st_mtime_ns:
        return
    node = find_node()
    done = subprocess.run(
        [*node.npm, "ci", "--no-progress"],
        cwd=folder,
        env=node.environment(os.environ),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode != 0:
        raise ScriptError(f"npm ci in {folder} failed:\n{done.stderr[-2000:]}")


@functools.cache
def _packages() -> None:
    npm_ci(FOLDER)


class LineProcess:
    """One running program that speaks the lines of `tests/e2e/node/lines.mjs`; a context manager that ends it.

    `log` is the file that gets what the program, called `script`, writes to stderr.
    """

    def __init__(self, command: Sequence[str | Path], script: str, log: Path) -> None:
        self._script = script
        self._log = log
        self._last_id = 0
        self._answers: queue.Queue[dict[str, Json] | None] = queue.Queue()
        environment = {name: value for name, value in os.environ.items() if name.lower() not in _PROXIES}
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True
            )
        self._reader = threading.Thread(target=self._read, name=script, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id of the script."""
        return self._process.pid

    def call(self, command: str, *, deadline: float = 60.0, **arguments: Json) -> Json:
        """Send `command` and return its result. Raises `ScriptError`; `deadline` is in seconds."""
        self._last_id += 1
        line = json.dumps({"id": self._last_id, "command": command, **arguments})
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._failed(f"{command}: the script has ended") from error
        while True:
            try:
                answer = self._answers.get(timeout=deadline)
            except queue.Empty:
                raise self._failed(f"{command}: no answer within {deadline} s") from None
            if answer is _END:
                raise self._failed(f"{command}: the script ended before it answered")
            if answer["id"] == self._last_id:  # a late answer to a call that gave up is passed over
                break
        if "error" in answer:
            raise self._failed(f"{command}: {answer['error']}")
        return answer["result"]

    def stop(self, grace: float = 10.0) -> None:
        """Close its stdin, which ends the script; kill it when it takes more than `grace` seconds."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self.kill()

    def kill(self) -> None:
        """End the script at once, as a crash would, if it has not ended."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(_END)

    def _failed(self, what: str) -> ScriptError:
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
        return ScriptError(f"{self._script}: {what}" + (f"\nend of its log:\n{tail}" if tail else ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class NodeProcess(LineProcess):
    """One running script of `tests/e2e/node`."""

    def __init__(self, script: str, log: Path) -> None:
        _packages()
        super().__init__([find_node().node, "--no-warnings", FOLDER / script], script, log)
