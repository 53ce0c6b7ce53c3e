"""Log sequence numbers of Postgres, as integers of their own type, so that they are not mistaken for op ids."""

from __future__ import annotations

from typing import NewType

Lsn = NewType("Lsn", int)

ZERO = Lsn(0)


def parse_lsn(text: str) -> Lsn:
    """`16/B374D848` as a number. Raises ValueError for anything else."""
    high, _, low = text.partition("/")
    return Lsn((int(high, 16) << 32) + int(low, 16))


def format_lsn(lsn: Lsn) -> str:
    """The text form that Postgres prints and accepts."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
