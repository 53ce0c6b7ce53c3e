"""What clients choose, such as ids and addresses that a proxy passes on: however long it is, little of it is kept."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import pytest

from headwater.api.limits import network_of
from headwater.api.streams.session import LeftOutMemory

NAMES = 300
LONG = 20_000
MOST_BYTES = 1000


def leaving_out() -> Callable[[str], object]:
    memory = LeftOutMemory()
    return lambda name: memory.put(name, 1, frozenset({"a"}))


@pytest.mark.parametrize("use", [leaving_out(), network_of], ids=["device", "address"])
def test_memory_of_a_long_name(use: Callable[[str], object]) -> None:
    tracemalloc.start()
    try:
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        for number in range(NAMES):
            use(f"{number}{'x' * LONG}")
        gc.collect()
        assert (tracemalloc.get_traced_memory()[0] - before) / NAMES < MOST_BYTES
    finally:
        tracemalloc.stop()
