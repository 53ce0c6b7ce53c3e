"""Many cases in several ways each: the ordinary run tries cases in one way, turn by turn, the long one in all."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest

BY_LOOKING, BY_TRIGGERS, AT_THE_START = FOUND = ("by looking", "by triggers", "at the start")
"""How a change of the source is found: by a look at the catalog now and then, by event triggers alone, or by the next
replicator, for it was made while none ran."""


_MANY = 10


def in_turn(cases: Collection[str], silent: Collection[str] = (), every: Sequence[str] = FOUND) -> list[Any]:
    """Parameters (case, way) for each pair, named after both; of the `silent` cases Postgres has no event. Each case is
    often played in one of the ways; of many cases, whose neighbours are alike, every other one."""
    parameters = []
    step = 2 if len(cases) >= _MANY else 1
    for number, case in enumerate(cases):
        turn, left_out = divmod(number, step)
        ways = [way for way in every if way != BY_TRIGGERS or case not in silent]
        for place, way in enumerate(ways):
            marks = () if turn % len(ways) == place and not left_out else (pytest.mark.long,)
            parameters.append(pytest.param(case, way, id=f"{case}-{way}", marks=marks))
    return parameters
