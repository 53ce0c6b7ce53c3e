"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headwater.errors import HeadwaterError
from headwater.source.readiness.finding import Finding


class Level(StrEnum):
    """How bad it is: a FAIL keeps rows from devices, or will."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Result:
    """One thing that was looked at, and what to do about it unless it is OK. `sql` are statements to copy."""

    area: str
    level: Level
    what: str
    fix: str = ""
    sql: tuple[str, ...] = ()


def ok(area: str, what: str) -> Result:
    """Nothing is wrong."""
    return Result(area, Level.OK, what)


def of_error(area: str, error: HeadwaterError) -> Result:
    """A failure that one of our errors tells."""
    where = f" ({error.where})" if error.where else ""
    return Result(area, Level.FAIL, f"[{error.code}] {error.what}{where}", error.fix)


def of_finding(area: str, finding: Finding) -> Result:
    """What a check of the source found."""
    level = Level.FAIL if finding.fatal else Level.WARN
    return Result(area, level, f"[{finding.code}] {finding.lasting}", finding.fix, finding.sql)
