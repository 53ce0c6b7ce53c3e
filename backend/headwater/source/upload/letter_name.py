"""What operators call a dead letter."""

from __future__ import annotations

from typing import NamedTuple

_DIGITS = 18  # more than the largest number of a letter has


class Letter(NamedTuple):
    """A dead letter as an operator names it: its number, after its source if there are several."""

    number: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.source}:{self.number}" if self.source else str(self.number)

    @classmethod
    def named(cls, text: str) -> Letter:
        """The letter of such a name, `12` or `crm:12`. Raises ValueError."""
        source, _, number = text.rpartition(":")
        if not (number.isascii() and number.isdecimal()) or len(number) > _DIGITS:
            raise ValueError(f"{text[:100]!r} is not the number of a dead letter, such as 12 or crm:12")
        return cls(int(number), source)
