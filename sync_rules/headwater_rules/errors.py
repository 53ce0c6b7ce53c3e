"""Errors in a sync config, and where they are in it.

All errors of a file are reported at once. An error is picklable and has a span of the YAML text, so that a terminal can
underline it and an editor can mark it. The compiler carries nodes of its trees; the span of a node is looked up when an
error is made.
"""

from __future__ import annotations

import difflib
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import lru_cache
from typing import NoReturn, Self

_MOST_SHOWN = 140  # characters of a source line beside its error
_MOST_TOLD = 1_000  # characters of a source line in JSON
_MOST_FINDINGS = 1_000
_MOST_WORK = 150_000
_IN_ONE_LINE = 20
_COMPARED = 200  # names, and characters of one, that are searched for a similar one


class Severity(Enum):
    """A fatal error rejects the config; a warning is shown and the config is used."""

    FATAL = "fatal"
    WARNING = "warning"


class RuleCode(StrEnum):
    """Stable codes of findings, and what they mean."""

    meaning: str

    def __new__(cls, code: str, meaning: str) -> Self:
        member = str.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    YAML = "HW_R001", "The file is not YAML, or contains a character that YAML does not allow."
    STRUCTURE = "HW_R002", "A key is unknown, missing, or has a value of the wrong type."
    OPTION = "HW_R003", "An option has an invalid value."
    EDITION = "HW_R004", "The config uses something that its edition does not have."
    CHANGED = "HW_R005", "YAML cuts off or changes the SQL of a query, so that it would not be what the file shows."
    SQL_SYNTAX = "HW_R101", "The SQL can't be parsed."
    UNSUPPORTED = "HW_R102", "The SQL is not supported, because rules are evaluated row by row."
    UNKNOWN_NAME = "HW_R103", "The query has no such table, column or alias."
    UNKNOWN_FUNCTION = "HW_R104", "Rules have no such function."
    MIXED_FILTER = (
        "HW_R105",
        "A condition compares the synced row with the request, or with several tables, other than by `=` or `IN`.",
    )
    SINGLE_TABLE = "HW_R106", "A query selects columns of more than one table."
    TOO_MANY = (
        "HW_R107",
        "A limit of the rules is exceeded: too many alternatives, parameters or elements, or too deep a nesting.",
    )
    INTERNAL = "HW_R108", "Two queries would share a name inside Headwater."
    DANGEROUS = "HW_R201", "Clients choose all values that select the rows, so any client may read any row."
    UNNAMED_COLUMN = "HW_R202", "A selected expression has no name."
    ALIAS_BEFORE_STAR = "HW_R203", "A named column is selected before `*`, which overrides it."
    JOINED_ALIAS = "HW_R204", "An alias in a join would become the table's name on devices."
    NO_EFFECT = "HW_R205", "Something has no effect."
    LOWERED = "HW_R206", "An unquoted name contains capitals, which SQL converts to lower case."
    OLD_EDITION = "HW_R207", "The edition gives some SQL an older meaning."
    NOT_THE_CTE = (
        "HW_R208",
        "A query under `with` uses the name of another one there, which means the table of that name.",
    )
    BUCKET_PER_ROW = "HW_R209", "Each row of a table gets its own bucket."
    EVERYBODY = (
        "HW_R210",
        "Every user gets the rows of a query, because nothing in it, or in a part of it, depends on the user.",
    )
    SAME_IDS = "HW_R211", "Rows of several tables are one table on devices, where those with the same id are one row."
    EVERY_ROW = (
        "HW_R212",
        "Each request looks up all rows of a table, because an alternative of an OR leaves it out.",
    )
    ONE_OF_SEVERAL = (
        "HW_R214",
        "A value of a joined row is used, and rows are joined by a column that may not be unique.",
    )
    MISREAD = "HW_R213", "Valid SQL seems to mean something else, such as `= NULL` or a text in double quotes."
    NO_TABLE = "HW_R301", "The source has no such table."
    NO_COLUMN = "HW_R302", "The source's table has no such column."
    NO_ID = "HW_R303", "Rows are sent to devices without a column `id`."
    NEVER_EQUAL = "HW_R304", "Values of two types are compared that are never equal."
    NOT_JSON = "HW_R305", "A value is read as JSON but is not JSON."
    BLOB = "HW_R306", "A column of type bytea, which devices don't get."
    NOT_SENT = "HW_R307", "A table is not published or may not be read, so none of its rows reach devices."
    PARTLY = (
        "HW_R308",
        "A table that a wildcard matches lacks a column that decides who gets rows, so nobody gets its rows.",
    )
    COLUMN_NOT_SENT = "HW_R309", "A column is not published, so its values are not known here."
    NOT_COMPUTED = "HW_R310", "The source can't compute a table: Postgres refuses its query, or its columns are wrong."


@dataclass(frozen=True, slots=True)
class Span:
    """A range of the YAML text: character offsets in `document`. Lines and columns count from 1."""

    document: str = field(repr=False)
    start: int
    end: int

    @property
    def line(self) -> int:
        """The line of the start."""
        return bisect_right(_line_starts(self.document), self.start)

    @property
    def column(self) -> int:
        """The column of the start. What is behind a carriage return is at the end of its line."""
        return min(self.start - self._line_start, len(self.source_line)) + 1

    @property
    def text(self) -> str:
        return self.document[self.start : self.end]

    @property
    def source_line(self) -> str:
        """The line of the start."""
        line_end = self.document.find("\n", self.start)
        return self.document[self._line_start : len(self.document) if line_end < 0 else line_end].rstrip("\r")

    @property
    def end_line(self) -> int:
        return self.line + self.document.count("\n", self.start, self.end)

    @property
    def end_column(self) -> int:
        """The column after the last character."""
        last = self.document.rfind("\n", self.start, self.end)
        return self.column + self.end - self.start if last < 0 else self.end - last

    @property
    def _line_start(self) -> int:
        return _line_starts(self.document)[self.line - 1]


def span_in(document: str, start: int, end: int) -> Span:
    """`document[start:end]`; offsets outside the document are moved to its end."""
    start = min(max(start, 0), len(document))
    return Span(document, start, min(max(end, start), len(document)))


@lru_cache(maxsize=4)
def _line_starts(document: str) -> Sequence[int]:
    """The offset of each line. Cached, because every error of a config needs its line."""
    return array("q", [0, *(found.end() for found in re.finditer("\n", document))])


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of the YAML text that mends a finding for certain: `replacement` takes the place of `span`."""

    span: Span
    replacement: str

    def applied(self) -> str:
        """The document with the change."""
        document = self.span.document
        return f"{document[: self.span.start]}{self.replacement}{document[self.span.end :]}"

    def to_dict(self) -> dict[str, object]:
        """For JSON: character offsets, lines and columns of what is replaced, and the replacement."""
        return {**_offsets(self.span), "replacement": self.replacement}


class RuleError(Exception):
    """An error or warning in a sync config: `message` says what, `span` where, `suggestion` what to do. `edit` does it,
    where that is certain."""

    def __init__(
        self,
        code: RuleCode,
        message: str,
        span: Span | None = None,
        suggestion: str = "",
        severity: Severity = Severity.FATAL,
        edit: Edit | None = None,
    ) -> None:
        super().__init__(code, message, span, suggestion, severity, edit)  # args are what pickle replays
        self.code = code
        self.message = message
        self.span = span
        self.suggestion = suggestion
        self.severity = severity
        self.edit = edit

    def as_fatal(self) -> RuleError:
        """The same finding as an error that rejects the config."""
        return RuleError(self.code, self.message, self.span, self.suggestion, edit=self.edit)

    def to_dict(self) -> dict[str, object]:
        """For JSON: code, severity, message, suggestion, and the span and the edit, or null."""
        return {
            "code": self.code.value,
            "severity": self.severity.value,
            "message": self.message,
            "suggestion": self.suggestion or None,
            "place": _span_dict(self.span) if self.span else None,
            "edit": self.edit.to_dict() if self.edit else None,
        }

    def __str__(self) -> str:
        where = f" (line {self.span.line}, column {self.span.column})" if self.span else ""
        remedy = f"; {self.suggestion}" if self.suggestion else ""
        return f"[{self.code.value}] {self.message}{where}{remedy}"

    def render(self) -> str:
        """The error with the source line underlined, for a terminal."""
        head = f"{'error' if self.severity is Severity.FATAL else 'warning'} [{self.code.value}]: {self.message}"
        lines = [head]
        if span := self.span:
            margin = " " * len(str(span.line))
            line, column = _cropped(span.source_line, span.column)
            before = line[: column - 1]
            indent = "".join(character if character == "\t" else " " for character in before)
            marked = max(min(span.end - span.start, len(line) - len(before)), 1)
            lines += [
                f"{margin} --> line {span.line}, column {span.column}",
                f"{span.line} | {line}",
                f"{margin} | {indent}{'^' * marked}",
            ]
        if self.suggestion:
            lines.append(f"  help: {self.suggestion}")
        return "\n".join(lines)


def _offsets(span: Span) -> dict[str, object]:
    return {
        "start": span.start,
        "end": span.end,
        "line": span.line,
        "column": span.column,
        "end_line": span.end_line,
        "end_column": span.end_column,
    }


def _span_dict(span: Span) -> dict[str, object]:
    return {
        **_offsets(span),
        "text": span.text[:_MOST_TOLD],
        "source_line": span.source_line[:_MOST_TOLD],
    }


def _cropped(line: str, column: int) -> tuple[str, int]:
    """The part of a long line around `column`, and the column in that part."""
    start = max(column - _MOST_SHOWN // 3, 1) - 1 if len(line) > _MOST_SHOWN else 0
    lead = "…" if start else ""
    tail = "…" if start + _MOST_SHOWN < len(line) else ""
    return f"{lead}{line[start : start + _MOST_SHOWN]}{tail}", column - start + len(lead)


class SyncConfigError(Exception):
    """All fatal errors of one sync config, in the order of the file, and the warnings found beside them."""

    code = "PSYNC_R0001"

    def __init__(self, errors: Sequence[RuleError], warnings: Sequence[RuleError] = ()) -> None:
        super().__init__(tuple(errors), tuple(warnings))
        self.errors = tuple(errors)
        self.warnings = tuple(warnings)

    @property
    def findings(self) -> tuple[RuleError, ...]:
        """Errors, then warnings."""
        return (*self.errors, *self.warnings)

    def __str__(self) -> str:
        count = f"{len(self.errors)} errors" if len(self.errors) != 1 else "an error"
        more = ", …" if len(self.errors) > _IN_ONE_LINE else ""
        return f"[{self.code}] the sync config has {count}: {', '.join(map(str, self.errors[:_IN_ONE_LINE]))}{more}"

    def to_dict(self) -> dict[str, object]:
        """For JSON: the code and all findings."""
        return {
            "code": self.code,
            "errors": [error.to_dict() for error in self.errors],
            "warnings": [warning.to_dict() for warning in self.warnings],
        }

    def render(self) -> str:
        """Every finding with its source line underlined, for a terminal."""
        return "\n\n".join(finding.render() for finding in self.findings)


class EvaluationError(Exception):
    """An expression failed on the values it was given. The message never contains them."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` with the closest known name, or an empty string."""
    known = [each for each in known if len(each) <= _COMPARED]
    if len(known) > _COMPARED or len(name) > _COMPARED:
        return ""
    close = difflib.get_close_matches(name.lower(), sorted(known), n=1, cutoff=0.6)
    return f"did you mean `{close[0]}`?" if close else ""


class StoppedError(Exception):
    """A compilation ended before its time. Its findings are in the report."""


class Report:
    """Collects the findings of one compilation, and limits its work."""

    def __init__(self) -> None:
        self.errors: list[RuleError] = []
        self.warnings: list[RuleError] = []
        self._work = 0
        self._last: list[RuleError] = []

    def add(self, finding: RuleError) -> None:
        """Keep a finding. Raises StoppedError when there are too many errors; further warnings are left out."""
        finding.with_traceback(None)  # it would keep everything that the compiler knew
        finding.__context__ = None
        if finding.severity is Severity.WARNING:
            if len(self.warnings) < _MOST_FINDINGS:
                self.warnings.append(finding)
            return
        self.errors.append(finding)
        if len(self.errors) >= _MOST_FINDINGS:
            self.stop(RuleError(RuleCode.TOO_MANY, "there are more errors, which were not looked for"))

    def spend(self, work: int, at: Callable[[], Span]) -> None:
        """Count work that grows with the config: words of SQL, and steps of the planner. Raises StoppedError when it is
        more than one config may cause."""
        self._work += work
        if self._work > _MOST_WORK:
            message = "the queries of this config are too many or too long to compile"
            hint = "shorten them, or split the config; aliases and `with` queries count wherever they are used"
            self.stop(RuleError(RuleCode.TOO_MANY, message, at(), hint))

    def stop(self, error: RuleError) -> NoReturn:
        """End the compilation with a last error."""
        self._last.append(error)
        raise StoppedError

    @contextmanager
    def collecting(self, at: Callable[[], Span] | None = None) -> Iterator[None]:
        """Collect an error that ends the block, including a query `at` a span that is nested too deeply."""
        try:
            yield
        except RuleError as error:
            self.add(error)
        except RecursionError:
            self.add(RuleError(RuleCode.TOO_MANY, "the query is nested too deeply", at and at(), "simplify it"))

    def sorted_errors(self) -> list[RuleError]:
        """Errors in the order of the file, without duplicates: an error in a shared expression is found by all its
        users."""
        return [*_in_order(self.errors), *self._last]

    def sorted_warnings(self) -> list[RuleError]:
        return _in_order(self.warnings)

    def as_errors(self, *more: RuleError) -> SyncConfigError:
        """All findings, as the exception that rejects the config."""
        return SyncConfigError([*self.sorted_errors(), *more], self.sorted_warnings())


def _in_order(findings: Sequence[RuleError]) -> list[RuleError]:
    ordered = sorted(findings, key=lambda each: each.span.start if each.span else -1)
    return list({str(each): each for each in ordered}.values())
