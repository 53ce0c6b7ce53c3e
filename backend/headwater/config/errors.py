"""Errors of a service config: all of them at once, each with its place in the file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.errors import HeadwaterError

_LOGIN = re.compile(r":/.*@", re.DOTALL)


def shown(text: str) -> str:
    """Text of the config, or a file name, as a message may show it: without the login of a URI."""
    return _LOGIN.sub(":/…@", text)


@dataclass(frozen=True, slots=True)
class Mark:
    """Line and column, from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@dataclass(frozen=True, slots=True)
class ConfigIssue:
    """An error in the service config: key, place, and what to do. `key` is a path like `client_auth.audience`."""

    what: str
    key: str = ""
    mark: Mark | None = None
    fix: str = ""
    code: str = "HW_7001"

    def __str__(self) -> str:
        place = f"{self.mark}: " if self.mark else ""
        key = f"{self.key}: " if self.key else ""
        remedy = f"; {self.fix}" if self.fix else ""
        return f"{place}[{self.code}] {key}{self.what}{remedy}"


@dataclass(frozen=True, slots=True)
class ConfigWarning:
    """Something in the service config that its author should know: key, place, and what holds instead."""

    what: str
    key: str
    mark: Mark | None = None

    def __str__(self) -> str:
        place = f"{self.mark}: " if self.mark else ""
        return f"{place}{self.key}: {self.what}"


class ConfigError(HeadwaterError):
    """A service config that can't be used, with all its errors. `origin` is the file, or another name for where it came
    from."""

    code = "HW_7001"

    def __init__(self, origin: str, issues: Sequence[ConfigIssue]) -> None:
        super().__init__("the service config can't be used", shown(origin))
        self.args = (origin, tuple(issues))  # what pickle replays
        self.origin = shown(origin)
        self.issues = tuple(issues)

    def __str__(self) -> str:
        if len(self.issues) == 1:
            return f"{self.origin}, {self.issues[0]}" if self.issues[0].mark else f"{self.issues[0]} ({self.origin})"
        return f"{self.origin} has {len(self.issues)} errors:" + "".join(f"\n  {issue}" for issue in self.issues)
