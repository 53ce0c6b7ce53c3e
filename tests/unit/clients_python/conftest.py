"""Servers of a few lines for devices, which outlive a device that asks for them first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.unit.clients_python.little_server import Start, serving


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(LittleServer(lines))` has it answer until the test ends."""
    with ExitStack() as stack:
        yield lambda server: stack.enter_context(serving(server))
