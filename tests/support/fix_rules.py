"""A store that serves a sync config, and a quick way to run commands on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support import command
from tests.support.command import Outcome
from tests.support.ruled_store import RuledStore


@pytest.fixture
def ruled(tmp_path: Path) -> Iterator[RuledStore]:
    """A filled store beside a service config. Nothing is served yet."""
    ruled = RuledStore(tmp_path)
    ruled.fill()
    yield ruled
    ruled.close()


@pytest.fixture
def headwater_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    """`headwater …` in the test's process and folder, which are those of the test, too."""
    monkeypatch.chdir(tmp_path)
    return partial(command.headwater_here, cwd=tmp_path)
