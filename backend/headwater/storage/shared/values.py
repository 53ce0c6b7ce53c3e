"""Conversion of values of result rows whose types the driver does not declare."""

from __future__ import annotations


def as_int(value: object) -> int:
    """The value as an int. Raises ValueError when it is not a whole number, which happens only in a damaged store."""
    return value if isinstance(value, int) else int(str(value))
