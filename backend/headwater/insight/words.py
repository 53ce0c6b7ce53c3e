"""Formats numbers for the commands on sync configs."""

from __future__ import annotations

_UNITS = ("B", "kB", "MB", "GB", "TB")


def count(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    unit = 0
    while number >= 1000 and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    return f"{number:.0f} {_UNITS[unit]}" if unit == 0 or number >= 10 else f"{number:.1f} {_UNITS[unit]}"


def per_bucket(things: str, buckets: int, number: int, total: int, largest: int, largest_size: int) -> str:
    """How much one bucket holds, on average and at most."""
    if buckets == 0:
        return f"no {things}"
    average = f"{number / buckets:,.0f} {things}, {size(total / buckets)}"
    return f"per bucket {average} on average, {largest:,} {things}, {size(largest_size)} at most"
