"""A store to be compacted, of every back end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headwater.storage.address import StoreAddress
from tests.contract.compaction.world import World


@pytest.fixture
def world(new_address: Callable[[], StoreAddress]) -> Iterator[World]:
    made = World(new_address())
    yield made
    made.close()
