"""Real `headwater` processes that a test kills, pauses and ends; the session's summary names the failpoints hit."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.command import command
from tests.support.processes import Running, hit, start

_ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


Launch = Callable[..., Running]


def _start(stack: ExitStack, folder: Path, arguments: list[str], failpoint: str) -> Running:
    number = next(_numbers)
    failpoints = folder / f"failpoints-{number}"
    variables = {"HEADWATER_FAILPOINT": failpoint, "HEADWATER_FAILPOINT_LOG": str(failpoints)}
    log = folder / f"process-{number}.log"
    running = start(arguments, log, failpoints=failpoints, cwd=_ROOT, variables=variables)
    stack.callback(_finish, running)
    return running


def _finish(running: Running) -> None:
    if running.alive:
        running.resume()
        running.ask_to_end()
        try:
            running.wait(30)
        except subprocess.TimeoutExpired:
            running.kill()
    print(f"{' '.join(map(str, running.process.args))}\n{running.output}")  # type: ignore[arg-type]  # a list of text


@contextmanager
def launching(folder: Path) -> Iterator[Launch]:
    """What `launch` is, with its files in a folder."""
    with ExitStack() as stack:

        def start(name: str, config: Mapping[str, object], *options: str, failpoint: str = "") -> Running:
            path = folder / f"headwater-{next(_numbers)}.json"
            path.write_text(json.dumps(config), encoding="utf-8")
            return _start(stack, folder, command(name, "--config", path, *options), failpoint)

        yield start


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """`launch("replicate", config)` runs the command, with options if some are given; `failpoint="name:2"` lets it die
    at the second passage there."""
    with launching(tmp_path) as start:
        yield start


@pytest.fixture
def launch_module(tmp_path: Path) -> Iterator[Launch]:
    """`launch_module("tests.support.x", "argument")` runs a module of the tests as a process of its own."""
    with ExitStack() as stack:
        yield lambda module, *arguments, failpoint="": _start(
            stack, tmp_path, [sys.executable, "-m", module, *arguments], failpoint
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several workers tells what it saw."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["failpoints"] = dict(hit)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """What a worker saw; one that crashed tells nothing."""
    hit.update(getattr(node, "workeroutput", {}).get("failpoints", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which failpoints processes of this session died at."""
    if hit:
        named = ", ".join(f"{name} ({count})" for name, count in sorted(hit.items()))
        terminalreporter.write_line(f"processes died at these failpoints: {named}")
