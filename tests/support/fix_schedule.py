"""In which order tests run, which of them share a process, and where the time of a run went.

Tests on Spark share one process, and so one JVM, which starts while the others run. Tests that wait come early and
short ones late, so that no process is left alone with long ones in the end. Within that the order is random.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Final

import pytest
from xdist.scheduler import LoadGroupScheduling

from tests.support.local_bulk import EVERYTHING_ON_SPARK

ON_SPARK: Final = "spark"
_ROOMS: Final = ("tests/e2e", "tests/spark", "tests/integration", "tests/contract", "tests/unit")

_seconds: defaultdict[str, float] = defaultdict(float)
_tests: Counter[str] = Counter()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Put tests together that share a process; in the end, after they were shuffled, sort them by their rooms."""
    for item in items:
        if item.get_closest_marker("spark") and not EVERYTHING_ON_SPARK:
            item.add_marker(pytest.mark.xdist_group(ON_SPARK))
    yield
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    if group is not None:
        return -1 if group.args == (ON_SPARK,) else 0
    if item.get_closest_marker("slow"):
        return 0
    return next((place for place, room in enumerate(_ROOMS, 1) if item.nodeid.startswith(room)), 0)


class ByRoom(LoadGroupScheduling):  # type: ignore[misc]  # xdist tells no types
    """Hands out tests one by one, groups at once, and of the many short ones in `tests/unit` a file at once."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file.startswith("tests/unit/") else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByRoom | None:
    """Ours takes the place of `--dist loadgroup`."""
    if config.getoption("dist") != "loadgroup":
        return None
    config.option.loadscopereorder = False  # the order is that of `_place`
    return ByRoom(config, log)


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
