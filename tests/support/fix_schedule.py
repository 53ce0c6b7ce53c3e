"""In which order tests run, which of them share a process, how long they may take, and where the time of a run went.

Tests on Spark share one process, and so one JVM, which starts while the others run. Tests that wait come early and
short ones late, so that no process is left alone with long ones in the end. Within that the order is random.
"""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.local_bulk import EVERYTHING_ON_SPARK

_ROOMS: Final = (
    "tests/spark",
    "tests/e2e",
    "tests/unit/api",
    "tests/unit/clients_python",
    "tests/integration",
    "tests/contract",
    "tests/unit",
)
_BY_FILE: Final = ("tests/unit/", "tests/e2e/test_demo_app.py", "tests/integration/test_dev_sample.py")
"""Files that go to one process each: many short tests, or such that share something dear."""
_LONG: Final = 1800
"""Seconds after which a long test hangs, unless it names a limit: many work for minutes, and more on a busy machine."""

_seconds: defaultdict[str, float] = defaultdict(float)
_tests: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Once they are shuffled, sort tests by their rooms; and long ones get time."""
    yield
    items.sort(key=_place)
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LONG))


def _place(item: pytest.Item) -> int:
    return next((place for place, room in enumerate(_ROOMS) if item.nodeid.startswith(room)), 0)


class ByRoom(LoadScopeScheduling):  # type: ignore[misc]  # xdist tells no types
    """Hands out all of `tests/spark` at once, some files at once, and all others test by test."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/spark/") and not EVERYTHING_ON_SPARK:
            return "tests/spark"
        return nodeid.partition("::")[0] if nodeid.startswith(_BY_FILE) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByRoom | None:
    """Ours takes the place of `--dist loadscope`."""
    if config.getoption("dist") != "loadscope":
        return None
    config.option.loadscopereorder = False  # the order is that of `_place`
    return ByRoom(config, log)


def pytest_collection_finish() -> None:
    """All that was imported stays: looking through it for garbage, every 700 objects, would cost a tenth of a run. From
    here on it is done as seldom as the replicator does it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count how long tests of a room take, with what they set up."""
    room = "/".join(report.nodeid.partition("::")[0].split("/")[:-1])
    _seconds[room] += report.duration
    _tests[room] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how long each room took, all processes together."""
    if len(_seconds) > 1:
        terminalreporter.write_sep("=", "seconds by room")
        for room, seconds in sorted(_seconds.items(), key=lambda pair: -pair[1]):
            terminalreporter.write_line(f"{seconds:8.1f} s {_tests[room]:5d} tests  {room}")
