"""Compares the tables and columns that a config names with those of the source.

A missing table or column is an error where it decides who gets which rows, else a warning. For rules that come before
their migration it is a warning everywhere. With `strict: true`, warnings reject the config, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headwater_rules.errors import Code, Place, Report, RuleError, Severity, did_you_mean
from headwater_rules.evaluate.binding import lacking
from headwater_rules.plan import Expr, TablePattern
from headwater_rules.schema import SourceColumn, SourceSchema, SourceTable, ValueKind

_NAMED = 8  # tables or columns that a hint lists

_Absent = tuple[TablePattern, str]
"""A column that a table lacks, or (without a name) the table itself."""


@dataclass(frozen=True, slots=True)
class Written:
    """A name as written in the SQL, and whether it is in double quotes."""

    text: str
    quoted: bool
    place: Place

    @property
    def folded(self) -> bool:
        """Whether SQL converts it to lower case."""
        return not self.quoted and self.text != self.text.lower()


class SourceChecks:
    """Compares a config with one source schema."""

    def __init__(self, schema: SourceSchema, *, custom_types: bool, allow_missing: bool) -> None:
        self._schema = schema
        self._custom_types = custom_types
        self._allow_missing = allow_missing
        self._found: list[tuple[RuleError, bool, _Absent | None]] = []
        self._deciding: set[_Absent] = set()

    def find(self, code: Code, message: str, place: Place, suggestion: str, *, grave: bool = True) -> None:
        """Keep a finding; `grave` ones reject a strict config."""
        self._found.append((RuleError(code, message, place, suggestion, Severity.WARNING), grave, None))

    def report_to(self, report: Report, *, strict: bool) -> None:
        """Report all findings. Called last, because an error stops further checks of the query that contains it."""
        for warning, grave, absent in self._found:
            if absent is None:
                fatal = strict and grave
            else:
                fatal = not self._allow_missing and (strict or absent in self._deciding)
            report.add(warning.as_fatal() if fatal else warning)

    def decides(self, pattern: TablePattern, exprs: Sequence[Expr], place: Place) -> None:
        """Note that the rows of a table are decided about by these expressions."""
        tables = self._schema.matching(pattern)
        if not tables and pattern.exact:
            self._deciding.add((pattern, ""))
        nowhere = set(lacking(exprs, frozenset[str]().union(*(table.sent for table in tables))))
        self._deciding.update((pattern, column) for column in nowhere)
        for table in () if pattern.exact else tables:
            absent = [name for name in lacking(exprs, table.sent) if name not in nowhere]
            if absent:
                message = f"`{_quoted(table.name)}` has no column {_listed(absent)}, so nobody gets rows of it"
                hint = f"that column decides who gets rows of `{pattern.name}`: add it, or name the tables that have it"
                self.find(Code.PARTLY, message, place, hint, grave=False)

    def _absent(self, absent: _Absent, code: Code, message: str, place: Place, hint: str) -> None:
        self._found.append((RuleError(code, message, place, hint, Severity.WARNING), True, absent))

    def table(self, pattern: TablePattern, name: Written) -> None:
        """Check that a table exists, or at least one that matches a wildcard."""
        found = self._schema.matching(pattern)
        for table in found:
            if table.lacks:
                shown = f"`{_quoted(table.schema)}.{_quoted(table.name)}`"
                message = f"no row of {shown} reaches a device: it is not published, or may not be read"
                self.find(Code.NOT_SENT, message, name.place, f"run {'; '.join(table.lacks)}")
        if found:
            return
        if other := self._schema.not_streamed_by(pattern):
            message = f"`{other.schema}.{other.name}` is {other.form}, which Postgres does not stream"
            self.find(Code.NO_TABLE, message, name.place, "name the tables that hold its rows")
            return
        shown = f"`{pattern.name}` in schema `{pattern.schema}`"
        if not pattern.exact:
            what = f"no table is called like {shown}"
            self._absent((pattern, ""), Code.NO_TABLE, what, name.place, self._table_hint(pattern))
            return
        others = [each for each in self._schema.tables if each.tag == pattern.tag and each.schema == pattern.schema]
        hint = _case_hint(name, [each.name for each in others]) or self._table_hint(pattern)
        self._absent((pattern, ""), Code.NO_TABLE, f"no table {shown}", name.place, hint)

    def column(self, pattern: TablePattern, column: str, name: Written) -> None:
        """Check that a column exists and is published, unless its table does not exist."""
        tables = self._schema.matching(pattern)
        if not tables or (column == "_table_suffix" and not pattern.exact):
            return
        if self._columns(tables, column):
            if all(column in table.unsent for table in tables if table.column(column) is not None):
                what = f"`{column}` of `{pattern.name}` is not published, so its values are not known here"
                hint = "name it in the publication's column list (ALTER PUBLICATION … SET TABLE), or do without it"
                self._absent((pattern, column), Code.COLUMN_NOT_SENT, what, name.place, hint)
            return
        known = list(dict.fromkeys(each.name for table in tables for each in table.columns))
        hint = _case_hint(name, known) or _near(column, known) or f"its columns are {_listed(known)}"
        what = f"no column `{column}` in `{pattern.name}`"
        self._absent((pattern, column), Code.NO_COLUMN, what, name.place, hint)

    def column_kind(self, pattern: TablePattern, column: str) -> tuple[ValueKind, SourceColumn] | None:
        """The kind of a column's values; None if it is unknown or differs among the tables of a wildcard."""
        found = self._columns(self._schema.matching(pattern), column)
        kinds = {each.value_kind(custom_types=self._custom_types) for each in found}
        return (kinds.pop(), found[0]) if len(kinds) == 1 else None

    def blobs(self, pattern: TablePattern) -> list[str]:
        """Columns of type bytea, which devices don't get."""
        tables = self._schema.matching(pattern)
        names = [column.name for table in tables for column in table.columns if column.kind is ValueKind.BLOB]
        return list(dict.fromkeys(names))

    def lacks_id(self, pattern: TablePattern) -> bool:
        """Whether any matching table has no column `id`."""
        return any(table.column("id") is None for table in self._schema.matching(pattern))

    def knows(self, pattern: TablePattern) -> bool:
        return bool(self._schema.matching(pattern))

    def _columns(self, tables: Iterable[SourceTable], name: str) -> list[SourceColumn]:
        found = (table.column(name) for table in tables)
        return [column for column in found if column is not None]

    def _table_hint(self, pattern: TablePattern) -> str:
        tables = [table for table in self._schema.tables if table.tag == pattern.tag]
        elsewhere = [table for table in tables if table.name == pattern.name]
        if elsewhere:
            return f"there is `{_quoted(elsewhere[0].schema)}.{_quoted(elsewhere[0].name)}`"
        here = [table.name for table in tables if table.schema == pattern.schema]
        return _near(pattern.name, here) or (f"its tables are {_listed(here)}" if here else "the schema has no table")


def _case_hint(name: Written, known: Sequence[str]) -> str:
    """A hint for a name that differs from a known one only in case."""
    same = [each for each in known if each.lower() == name.text.lower()]
    if not same:
        return ""
    if name.folded:
        means = f"`{name.text}` is written without quotes and so means `{name.text.lower()}`"
        return f'{means}; write `"{same[0]}"`'
    return f"did you mean `{_quoted(same[0])}`?"


def _near(name: str, known: Iterable[str]) -> str:
    by_lower = {each.lower(): each for each in known}
    hint = did_you_mean(name, by_lower)
    for lower, each in by_lower.items():
        if lower != each and f"`{lower}`" in hint:
            return f'did you mean `"{each}"`?'
    return hint


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{_quoted(name)}`" for name in names[:_NAMED])
    return f"{shown}, …" if len(names) > _NAMED else shown


def _quoted(name: str) -> str:
    return name if name == name.lower() else f'"{name}"'
