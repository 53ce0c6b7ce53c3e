"""A store to be compacted, of every back end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headwater.storage.address import StoreAddress
from headwater.storage.shared import segments
from tests.contract.compaction.compaction_setup import CompactionSetup


@pytest.fixture
def compacted(new_address: Callable[[], StoreAddress]) -> Iterator[CompactionSetup]:
    made = CompactionSetup(new_address())
    yield made
    made.close()


@pytest.fixture(params=["runs", "lines"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether flushes write their ops as runs, or one by one."""
    monkeypatch.setattr(segments, "RUN_OPS", 1 if request.param == "runs" else 1 << 30)
