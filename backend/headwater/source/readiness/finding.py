"""Findings: problems of a source, with their remedies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong and how to fix it. A fatal finding keeps rows from devices, or writes of devices from
    the source. `sql` has the statements that fix it,
    if any do, to be copied."""

    code: str
    what: str
    fix: str
    fatal: bool = True
    sql: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[{self.code}] {self.what}; {self.fix}"

    @classmethod
    def lacking(cls, code: str, what: str, statement: str, how: str = "") -> Finding:
        """A fatal finding that one statement fixes; `how` says how to run it."""
        return cls(code, what, f"run {statement}{how}", sql=(statement,))
