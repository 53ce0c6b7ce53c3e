"""Many cases in several ways each: the ordinary run tries each case in one way, turn by turn, the long one in all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

BY_LOOKING, BY_TRIGGERS, AT_THE_START = FOUND = ("by looking", "by triggers", "at the start")
"""How a change of the source is found: by a look at the catalog now and then, by event triggers alone, or by the next
replicator, for it was made while none ran."""


def in_turn(cases: Iterable[str], silent: Collection[str] = ()) -> list[Any]:
    """Parameters (case, way) for each pair, named after both. Of the `silent` cases Postgres has no event."""
    parameters = []
    for number, case in enumerate(cases):
        ways = [way for way in FOUND if way != BY_TRIGGERS or case not in silent]
        for place, way in enumerate(ways):
            marks = () if number % len(ways) == place else (pytest.mark.long,)
            parameters.append(pytest.param(case, way, id=f"{case}-{way}", marks=marks))
    return parameters
