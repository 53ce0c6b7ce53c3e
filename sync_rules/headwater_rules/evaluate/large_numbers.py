"""Detects numbers in a request that are too large to be exact.

JSON readers store numbers as doubles, which round integers beyond 2^53: one user's id would become another's. An
expression that reads such a number fails, so that it gives no rows; expressions that read other values of the same
token are not affected.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

LARGEST = 2**53

Steps = tuple[str | int, ...]
"""The path to a value in JSON: keys of objects and positions in arrays."""

_TEXT = r"('(?:[^']|'')*')"
_READING = re.compile(rf"\(\?(\d+) ->>? {_TEXT}|json_type\(\?(\d+), {_TEXT}|{_TEXT}|\?(\d+)")
_STEP = re.compile(r'\."([^"\\]*)"|\[(\d+)\]')


def is_exact(number: float) -> bool:
    """Whether a number of a request is certainly exact. A real of 2^53 may be rounded already."""
    return abs(number) <= LARGEST if isinstance(number, int) else not abs(number) >= LARGEST


def holds_inexact(value: object, steps: Steps = ()) -> bool:
    """Whether the value that `steps` lead to contains an inexact number."""
    for step in steps:
        value = _inside(value, step)
    match value:
        case bool():
            return False
        case int() | float():
            return not is_exact(value)
        case Mapping():
            return any(holds_inexact(item) for item in value.values())
        case list() | tuple():
            return any(holds_inexact(item) for item in value)
        case _:
            return False


def _inside(value: object, step: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(step) if isinstance(step, str) else None
    if isinstance(value, Sequence) and not isinstance(value, str) and isinstance(step, int):
        return value[step] if step < len(value) else None
    return None


@lru_cache(maxsize=10_000)
def readings(sql: str) -> tuple[tuple[int, Steps], ...]:
    """What an expression reads of its inputs, which are JSON texts: positions of inputs, each with the path to a value.
    An input that is used in any other way than a JSON access is read as a whole."""
    found: dict[tuple[int, Steps], None] = {}
    for match in _READING.finditer(sql):
        number, path = match[1] or match[3] or match[6], match[2] or match[4]
        if number:
            found[int(number) - 1, _steps(path) if path else ()] = None
    return tuple(found)


def _steps(literal: str) -> Steps:
    """The steps of a path, up to the first that is not supported here; the value there is read as a whole."""
    path = literal[1:-1].replace("''", "'")
    steps: list[str | int] = []
    position = 1 if path.startswith("$") else len(path)
    while step := _STEP.match(path, position):
        steps.append(step[1] if step[2] is None else int(step[2]))
        position = step.end()
    return tuple(steps)


def named(steps: Steps) -> str:
    """Steps as written in a rule."""
    return ".".join(map(str, steps if len(steps) == 1 else ("$", *steps)))
