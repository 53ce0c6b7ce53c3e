"""How many examples property tests look at: a part of them in the ordinary run, and all where HEADWATER_TEST_EXAMPLES
is `all`, as `make test-all` does."""

from __future__ import annotations

import os
from typing import Final

ALL: Final = os.environ.get("HEADWATER_TEST_EXAMPLES") == "all"

_PART, _FEWEST = 0.2, 10


def examples(number: int) -> int:
    """How many of so many examples are looked at."""
    return number if ALL else min(number, max(_FEWEST, round(number * _PART)))
