"""The text form of values, used wherever a value becomes text: `||`, casts, functions, ids."""

from __future__ import annotations

import math
from decimal import Decimal

from headwater_rules.plan import Value


def number_text(value: float) -> str:
    """A real as `||` prints it, in the way of JavaScript: the shortest digits that read back as the same number,
    integral ones without `.0`, with an exponent below 1e-6 and from 1e21."""
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value) if abs(value) < 2**53 else int(Decimal(repr(value))))
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if 1e-6 <= abs(value) < 1e-4:  # where Python already writes an exponent
        mantissa, _, exponent = repr(abs(value)).partition("e-")
        return f"{'-' if value < 0 else ''}0.{'0' * (int(exponent) - 1)}{mantissa.replace('.', '')}"
    return repr(value).replace("e-0", "e-")


def as_text(value: Value) -> str | None:
    """The text form of a value; null stays null."""
    match value:
        case str() | None:
            return value
        case float():
            return number_text(value)
        case bytes():
            return value.decode("utf-8", "replace")
        case _:
            return str(value)
