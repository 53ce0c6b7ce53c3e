"""Findings: problems of a source, with their remedies."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong and how to fix it. A fatal finding keeps rows from devices, or writes of devices from the source.
    `sql` has the statements that fix it, if any do, to be copied. `since` is when what it names began, in seconds since
    1970, where that matters."""

    code: str
    what: str
    fix: str
    fatal: bool = True
    sql: tuple[str, ...] = ()
    since: float | None = None

    def __str__(self) -> str:
        return f"[{self.code}] {self.lasting}; {self.fix}"

    @property
    def key(self) -> tuple[object, ...]:
        """What stays the same of a finding. What is told of something that lasts changes, such as a session's last
        statement."""
        return self.code, self.fatal, self.what if self.since is None else self.sql

    @property
    def lasting(self) -> str:
        """What is wrong, and how old that is by now."""
        return self.what if self.since is None else f"{self.what}, {span(time.time() - self.since)} old"

    @classmethod
    def lacking(cls, code: str, what: str, statement: str, how: str = "") -> Finding:
        """A fatal finding that one statement fixes; `how` says how to run it."""
        return cls(code, what, f"run {statement}{how}", sql=(statement,))


def span(seconds: float) -> str:
    """A time for people, in the largest unit that it has at least two of: 90 s, 12 min, 3 h, 5 days."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
