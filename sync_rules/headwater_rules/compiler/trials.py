"""Tries conditions with sample values, to find those that are always true. What is false for one value is not; what is
true for all of them may still be false for another."""

from __future__ import annotations

import re
from collections.abc import Sequence

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.engine import small_engine
from headwater_rules.plan import Expr, RequestInput, Value

_SAMPLES: tuple[Value, ...] = (None, 0, 1, -1, 2.5, "", "a", "B", "1", "[]", "{}", "2020-01-31", b"")
_WRITTEN = re.compile(r"'((?:[^']|'')*)'|\b(\d+(?:\.\d+)?)\b")


def samples(test: Expr) -> tuple[Value, ...]:
    """Values to try, among them those that the condition names."""
    written = [text.replace("''", "'") if text or not number else float(number)
               for text, number in _WRITTEN.findall(test.sql)]  # fmt: skip
    return (*_SAMPLES, *written)


def holds(test: Expr, values: Sequence[Value]) -> bool:
    """Whether a condition is true of these values of its inputs."""
    try:
        return bool(small_engine().rows(f"SELECT {test.sql}", list(values))[0][0])
    except EvaluationError:
        return False


def every_user_passes(gate: Expr) -> bool:
    """Whether a condition on the request asks for nothing but the user's id and is true of all that were tried. A token
    always has one."""
    if not {*gate.inputs} <= {RequestInput.USER_ID.value}:
        return False
    users = [value for value in samples(gate) if isinstance(value, str) and value] if gate.inputs else [""]
    return all(holds(gate, [user] * len(gate.inputs)) for user in users)
