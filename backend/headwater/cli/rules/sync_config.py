"""Reads and compiles sync configs for commands."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import click

from headwater.cli.options import to_json
from headwater.config.document import ConfigError, ConfigIssue
from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import RuleCode, RuleError, Severity, SyncConfigError


class WrongRulesError(click.ClickException):
    """A sync config that does not compile: shown with the name of its file and all its errors."""

    def __init__(self, origin: str, errors: SyncConfigError, *, as_json: bool = False) -> None:
        super().__init__(str(errors))
        self.origin = origin
        self.errors = errors
        self.as_json = as_json

    def show(self, file: IO[Any] | None = None) -> None:
        text = to_json(self.errors.to_dict()) if self.as_json else f"{self.origin}:\n{self.errors.render()}"
        click.echo(text, file=file, err=not self.as_json)
        for note in missing_note(self.errors.errors) if not self.as_json else ():
            click.echo(f"note: {note}", file=file, err=True)


def read_text(file: Path, what: str = "the sync config") -> str:
    """The text of a file, called `what` in messages; `-` is standard input. Raises ConfigError."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        issue = ConfigIssue(f"{what} can't be read: {error.strerror}", fix="check the path")
        raise ConfigError(str(file), [issue]) from error
    except UnicodeDecodeError as error:
        issue = ConfigIssue(f"{what} is not UTF-8 text", fix="save it as UTF-8")
        raise ConfigError(str(file), [issue]) from error


_ABSENT = {RuleCode.NO_TABLE, RuleCode.NO_COLUMN, RuleCode.COLUMN_NOT_SENT}


def missing_note(findings: Iterable[RuleError]) -> list[str]:
    """What to do about tables and columns that are not there yet, if that is an error."""
    absent = any(each.severity is Severity.FATAL and each.code in _ABSENT for each in findings)
    return ["if a migration adds what is not there yet, pass --allow-missing"] if absent else []


@contextmanager
def wrong_rules(origin: str, *, as_json: bool = False) -> Iterator[None]:
    """Raise WrongRulesError for a sync config that does not compile, called `origin` in messages."""
    try:
        yield
    except SyncConfigError as error:
        raise WrongRulesError(origin, error, as_json=as_json) from None


def compile_rules(text: str, origin: str, *, as_json: bool = False) -> Compiled:
    """Compile a sync config, called `origin` in messages. Raises WrongRulesError."""
    with wrong_rules(origin, as_json=as_json):
        return compile_config(text)
