"""Something about a source that is not as it should be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong and what to do about it; a fatal one keeps rows from devices. `sql` are the statements that mend
    it, to be copied, where statements do."""

    code: str
    what: str
    fix: str
    fatal: bool = True
    sql: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[{self.code}] {self.what}; {self.fix}"

    @classmethod
    def lacking(cls, code: str, what: str, statement: str, how: str = "") -> Finding:
        """A fatal one that one statement mends; `how` says how to run it."""
        return cls(code, what, f"run {statement}{how}", sql=(statement,))
