"""Many cases in several ways each: the ordinary run tries each case in one way, turn by turn, the long one in all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest


def in_turn(cases: Iterable[str], ways: Mapping[str, object]) -> list[Any]:
    """Parameters (case, way) for each pair, named after both; `ways` gives the value of each by its name."""
    parameters = []
    for number, case in enumerate(cases):
        for place, (name, way) in enumerate(ways.items()):
            marks = () if number % len(ways) == place else (pytest.mark.long,)
            parameters.append(pytest.param(case, way, id=f"{case}-{name}", marks=marks))
    return parameters


FOLLOWED_OR_STOPPED = {"followed": False, "stopped": True}
"""Whether a replicator is stopped while something happens."""
