"""Findings about a query: errors inside expressions, so that later errors are found too, and, if the source's schema is
known, tables, columns and comparisons that do not fit it.

A missing table or column is an error where it decides who gets which rows, else a warning. For rules that come before
their migration it is a warning everywhere. With `strict: true`, warnings reject the config, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from headwater_rules.compiler import functions
from headwater_rules.compiler.clock import names_time
from headwater_rules.compiler.fragment import NUMERIC, REQUEST, ExprKind, Frag
from headwater_rules.compiler.relations import ExpandedArray, SelectedColumn, SelectedStar, TableRef
from headwater_rules.errors import Edit, Report, RuleCode, RuleError, did_you_mean
from headwater_rules.evaluate.binding import lacking
from headwater_rules.plan import Expr, TablePattern
from headwater_rules.schema import SourceColumn, SourceSchema, SourceTable, ValueKind
from headwater_rules.text.sqltext import edit_of, identifier, span_of, warning_at

_NAMED = 8  # tables or columns that a hint lists

_Absent = tuple[TablePattern, str]
"""A column that a table lacks, or (without a name) the table itself."""


class SourceChecks:
    """Compares a config with one source schema."""

    def __init__(self, schema: SourceSchema, *, custom_types: bool, allow_missing: bool) -> None:
        self.schema = schema
        self._custom_types = custom_types
        self.allow_missing = allow_missing
        self._found: list[tuple[RuleError, bool, _Absent | None]] = []
        self._deciding: set[_Absent] = set()

    def find(
        self,
        code: RuleCode,
        message: str,
        node: exp.Expr,
        hint: str,
        *,
        grave: bool = True,
        absent: _Absent | None = None,
        edit: Edit | None = None,
    ) -> None:
        """Keep a finding; `grave` ones reject a strict config, and those of what is `absent` where that decides."""
        self._found.append((warning_at(code, message, node, hint, edit), grave, absent))

    def report_to(self, report: Report, *, strict: bool) -> None:
        """Report all findings. Called last, because an error stops further checks of the query that contains it."""
        for warning, grave, absent in self._found:
            if absent is None:
                fatal = strict and grave
            else:
                fatal = not self.allow_missing and (strict or absent in self._deciding)
            report.add(warning.as_fatal() if fatal else warning)

    def decides(self, pattern: TablePattern, exprs: Sequence[Expr], node: exp.Expr) -> None:
        """Note that the rows of a table are decided about by these expressions."""
        tables = self.schema.matching(pattern)
        if not self.schema.knows(pattern):
            return
        if not tables and pattern.exact:
            self._deciding.add((pattern, ""))
        nowhere = set(lacking(exprs, frozenset[str]().union(*(table.sent for table in tables))))
        self._deciding.update((pattern, column) for column in nowhere)
        for table in () if pattern.exact else tables:
            absent = [name for name in lacking(exprs, table.sent) if name not in nowhere]
            if absent:
                message = f"`{_quoted(table.name)}` has no column {_listed(absent)}, so nobody gets rows of it"
                hint = f"that column decides who gets rows of `{pattern.name}`: add it, or name the tables that have it"
                self.find(RuleCode.PARTLY, message, node, hint, grave=False)

    def table(self, pattern: TablePattern, node: exp.Identifier) -> None:
        """Check that a table exists, or at least one that matches a wildcard."""
        found = self.schema.matching(pattern)
        for table in found:
            if table.lacks:
                parts = (table.schema, table.name) if table.tag == "default" else (table.tag, table.schema, table.name)
                shown = f"`{'.'.join(map(_quoted, parts))}`"
                message = f"no row of {shown} reaches a device: it is not published, or may not be read"
                self.find(RuleCode.NOT_SENT, message, node, f"run {'; '.join(table.lacks)}")
        if found or not self.schema.knows(pattern):
            return
        if other := self.schema.not_streamed_by(pattern):
            message = f"`{other.schema}.{other.name}` is {other.form}, which Postgres does not stream"
            self.find(RuleCode.NO_TABLE, message, node, "name the tables that hold its rows")
            return
        tags = list(dict.fromkeys(each.tag for each in self.schema.tables))
        if tags and not any(pattern.of(tag) for tag in tags):
            message = f"no source with tables is called `{pattern.tag}`"
            hint = did_you_mean(pattern.tag, tags) or f"there are {_listed(tags)}"
            self.find(RuleCode.NO_TABLE, message, node, hint, absent=(pattern, ""))
            return
        of_source = "" if pattern.tag == "default" else f" of source `{pattern.tag}`"
        shown = f"`{pattern.name}` in schema `{pattern.schema}`{of_source}"
        if not pattern.exact:
            what = f"no table is called like {shown}"
            self.find(RuleCode.NO_TABLE, what, node, self._table_hint(pattern), absent=(pattern, ""))
            return
        others = [each for each in self.schema.tables if each.tag == pattern.tag and each.schema == pattern.schema]
        hint = _case_hint(node, [each.name for each in others]) or self._table_hint(pattern)
        self.find(RuleCode.NO_TABLE, f"no table {shown}", node, hint, absent=(pattern, ""))

    def column(self, pattern: TablePattern, column: str, node: exp.Identifier) -> None:
        """Check that a column exists and is published, unless its table does not exist."""
        tables = self.schema.matching(pattern)
        if not tables or not self.schema.knows(pattern) or (column == "_table_suffix" and not pattern.exact):
            return
        if having := [table for table in tables if table.column(column) is not None]:
            if all(column in table.unsent for table in having):
                what = f"`{column}` of `{pattern.name}` is not published, so its values are not known here"
                hint = "name it in the publication's column list (ALTER PUBLICATION … SET TABLE), or do without it"
                self.find(RuleCode.COLUMN_NOT_SENT, what, node, hint, absent=(pattern, column))
            return
        known = list(dict.fromkeys(each.name for table in tables for each in table.columns))
        hint = _case_hint(node, known) or _near(column, known)
        edit = None
        if not hint and node.args.get("quoted") and isinstance(node.parent, exp.Column) and not node.parent.table:
            written = functions.quoted(column)
            hint, edit = f"write `{written}` in single quotes for a text", edit_of(node, written)
        hint = hint or f"its columns are {_listed(known)}"
        what = f"no column `{column}` in `{pattern.name}`"
        self.find(RuleCode.NO_COLUMN, what, node, hint, absent=(pattern, column), edit=edit)

    def column_kind(self, pattern: TablePattern, column: str) -> tuple[ValueKind, SourceColumn] | None:
        """The kind of a column's values; None if it is unknown or differs among the tables of a wildcard."""
        found = [each for table in self.schema.matching(pattern) if (each := table.column(column)) is not None]
        kinds = {each.value_kind(custom_types=self._custom_types) for each in found}
        return (kinds.pop(), found[0]) if len(kinds) == 1 else None

    def matching(self, pattern: TablePattern) -> tuple[SourceTable, ...]:
        return self.schema.matching(pattern)

    def _table_hint(self, pattern: TablePattern) -> str:
        if others := [each for each in self.schema.tables if pattern.schema == each.tag and each.name == pattern.name]:
            return f"write `{_quoted(others[0].tag)}.{_quoted(others[0].schema)}.{_quoted(others[0].name)}`"
        tables = [table for table in self.schema.tables if table.tag == pattern.tag]
        elsewhere = [table for table in tables if table.name == pattern.name]
        if elsewhere:
            return f"there is `{_quoted(elsewhere[0].schema)}.{_quoted(elsewhere[0].name)}`"
        here = [table.name for table in tables if table.schema == pattern.schema]
        return _near(pattern.name, here) or (f"its tables are {_listed(here)}" if here else "the schema has no table")


def _case_hint(node: exp.Identifier, known: Sequence[str]) -> str:
    """A hint for a name that differs from a known one only in case."""
    same = [each for each in known if each.lower() == node.name.lower()]
    if not same:
        return ""
    if node.name != identifier(node):
        means = f"`{node.name}` is written without quotes and so means `{identifier(node)}`"
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


_NEVER_JSON = ("uuid", "timestamp", "date", "time", "interval", "numeric", "inet", "cidr", "money")
_NEVER_A_MOMENT = ("time without", "time with", "time(", "interval", "uuid", "numeric", "inet", "cidr", "money")
_MAX_SHOWN = 60
_SIMPLE = re.compile(r"[\w.\"]+(?:\([^()]*\))?|'[^']*'")
_NUMBER = re.compile(r"'[+-]?[0-9]+(\.[0-9]+)?'")
_SIZE_PER_WORD = 300  # building so large an expression takes as long as compiling a word
_ELEMENT = "\x00element"  # after an array: an element of it is meant


class QueryChecks:
    """Findings about one query, whose tables are `instances`. They go to `report`."""

    def __init__(
        self, checks: SourceChecks | None, instances: Sequence[TableRef | ExpandedArray], report: Report
    ) -> None:
        self._checks = checks
        self._instances = instances
        self.report = report

    def failed(self, error: RuleError, node: exp.Expr) -> Frag:
        """Report an error, and return a placeholder value. The query is rejected in the end."""
        self.report.add(error)
        return Frag(("NULL",), ExprKind.ANY, node)

    def built(self, value: Frag) -> None:
        """Count the memory and time that a value takes. Raises StoppedError where that is too much in all."""
        self.report.spend(value.size // _SIZE_PER_WORD, value.span)

    def cases(self, node: exp.Select) -> None:
        """Report names in a SELECT that SQL converts to lower case."""
        for found in node.find_all(exp.Identifier):
            is_word = found.parent is not None and names_time(found.parent)  # of the language, in any case
            if found.name != identifier(found) and found.parent_select is node and not is_word:
                message = f"`{found.name}` is written without quotes and so means `{identifier(found)}`"
                hint = f'write "{found.name}" in quotes to keep the case'
                self.report.add(warning_at(RuleCode.LOWERED, message, found, hint))

    def table(self, table: TableRef, node: exp.Identifier) -> None:
        if self._checks is not None:
            self._checks.table(table.pattern, node)

    def column(self, table: TableRef, name: str, node: exp.Identifier) -> None:
        if self._checks is not None:
            self._checks.column(table.pattern, name, node)

    def compared(self, left: Frag, right: Frag, node: exp.Expr, *, equality: bool = True) -> None:
        """Report a comparison of a number with text, or with a blob. The language converts neither."""
        if self._checks is None:
            return
        sides = self._side(left), self._side(right)
        if None in (sides[0].kind, sides[1].kind) or sides[0].kind == sides[1].kind:
            return
        what = "they are never equal" if equality else "all of one kind are greater than all of the other"
        message = f"{sides[0].description} and {sides[1].description}: {what}"
        self._checks.find(RuleCode.NEVER_EQUAL, message, node, _cast_hint(sides[0], sides[1], node))

    def searched(self, left: Frag, array: Frag, node: exp.Expr) -> None:
        """Report a search for a number among texts or the other way round, or in a value that is not an array."""
        if self._checks is None:
            return
        self.json(array, array.node, "`IN`")
        self.compared(left, replace(array, parts=(*array.parts, _ELEMENT)), node)

    def json(self, value: Frag, node: exp.Expr, what: str) -> None:
        """Report that `what` reads a column that can't hold JSON."""
        known = self._column(value)
        if self._checks is None or known is None:
            return
        kind, column = known
        plain = kind in {ValueKind.INTEGER, ValueKind.REAL, ValueKind.BLOB} or column.type.startswith(_NEVER_JSON)
        if plain and kind is not ValueKind.JSON:
            message = f"{what} needs JSON, and `{column.name}` is of type {column.type}"
            self._checks.find(
                RuleCode.NOT_JSON, message, node, "use a column of type json, jsonb, an array or JSON text"
            )

    def moment(self, value: Frag, node: exp.Expr) -> None:
        """Report that a column is compared with the current time which can't hold points in time."""
        known = self._column(value)
        if self._checks is None or known is None:
            return
        kind, column = known
        if kind is not ValueKind.TEXT or column.type.startswith(_NEVER_A_MOMENT):
            message = f"`{column.name}` ({column.type}) is no point in time, so this comparison is never true"
            hint = "compare a column of type timestamptz, timestamp or date"
            self._checks.find(RuleCode.NEVER_EQUAL, message, node, hint)

    def selected(self, table: TableRef, columns: Sequence[SelectedColumn | SelectedStar], node: exp.Expr) -> None:
        """Report columns of the synced table that devices don't get, and rows without a column `id`."""
        checks, called = self._checks, table.pattern.name
        if checks is None or not (tables := checks.matching(table.pattern)):
            return
        everything, named = False, set[str]()
        for column in columns:
            if isinstance(column, SelectedStar):
                everything = True
                blobs = (each.name for table in tables for each in table.columns if each.kind is ValueKind.BLOB)
                for name in dict.fromkeys(blobs):
                    message = f"`{name}` of `{called}` is bytea, and devices get no blobs"
                    hint = (
                        f"name the columns, with `base64({name}) AS {name}` or `hex({name}) AS {name}` if they need it"
                    )
                    checks.find(RuleCode.BLOB, message, column.node, hint, grave=False)
                continue
            named.add(column.name)
            known = self._column(column.value)
            if known is not None and known[0] is ValueKind.BLOB:
                message, name = f"`{column.name}` is bytea, and devices get no blobs", known[1].name
                hint = f"write `base64({name}) AS {column.name}` or `hex({name}) AS {column.name}`"
                checks.find(RuleCode.BLOB, message, column.node, hint)
        if "id" not in named and (not everything or any(each.column("id") is None for each in tables)):
            message = f"no column `id` is selected from `{called}`: rows get `row_id()` as their id"
            hint = "select `… AS id`, or `row_id() AS id` if that is meant"
            checks.find(RuleCode.NO_ID, message, columns[0].node if columns else node, hint, grave=False)

    # kinds of values

    def _column(self, value: Frag) -> tuple[ValueKind, SourceColumn] | None:
        """The source column that a fragment consists of, if any."""
        ref = value.ref
        if self._checks is None or ref is None or ref.table == REQUEST:
            return None
        instance = self._instances[ref.table]
        return self._checks.column_kind(instance.pattern, ref.column) if isinstance(instance, TableRef) else None

    def _side(self, value: Frag) -> _Side:
        """One side of a comparison."""
        if value.parts[-1] == _ELEMENT:
            return self._element(replace(value, parts=value.parts[:-1]), value)
        known, ref = self._column(value), value.ref
        if known is not None:
            return _Side(value, _of(known[0]), known[1].name, known[1].type)
        if ref is not None and ref.table == REQUEST:
            return _Side(value, "text")
        if ref is not None:
            instance = self._instances[ref.table]
            if isinstance(instance, ExpandedArray) and ref.column == "value":
                return self._element(instance.array, value)
            return _Side(value, None)
        kind = "number" if value.kind in NUMERIC else "text" if value.kind is ExprKind.TEXT else None
        return _Side(value, kind, literal=value.simple)

    def _element(self, array: Frag, value: Frag) -> _Side:
        known = self._column(array)
        kind = known[1].elements if known is not None else None
        return _Side(value, kind and _of(kind), elements_of=known[1].name if known else "")


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a comparison, its kind (number, text or blob), and what it is."""

    value: Frag
    kind: str | None
    column: str = ""
    type: str = ""
    elements_of: str = ""
    literal: bool = False

    @property
    def text(self) -> str:
        text = " ".join(self.value.span().text.split())
        return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"

    @property
    def description(self) -> str:
        kind = {"number": "a number", "blob": "a blob"}.get(self.kind or "", "text")
        if self.elements_of:
            return f"an element of `{self.elements_of}` is {kind}"
        return f"`{self.column}` ({self.type}) is {kind}" if self.column else f"`{self.text}` is {kind}"


def _cast_hint(left: _Side, right: _Side, node: exp.Expr) -> str:
    """The comparison to write instead: cast a column rather than a literal, and to text rather than to a number."""
    if "blob" in {left.kind, right.kind}:
        return "compare `hex(…)` or `base64(…)` of it with text"
    number, other = (left, right) if left.kind == "number" else (right, left)
    if number.type == "boolean":
        return f"write `{number.text}` alone, or `{number.text} = true`: a boolean is 1 or 0 here"
    if number.column and other.literal and _NUMBER.fullmatch(other.text):
        return f"write {other.text} without the quotes"
    chosen, target = (other, "numeric") if number.literal or number.elements_of else (number, "text")
    simple = _SIMPLE.fullmatch(chosen.text)
    cast = f"{chosen.text}::{target}" if simple else f"CAST({chosen.text} AS {target})"
    whole = " ".join(span_of(node).text.split())
    fits = chosen.text in whole and len(whole) <= _MAX_SHOWN
    return f"write `{whole.replace(chosen.text, cast, 1) if fits else cast}`"


_COMPARED = {ValueKind.INTEGER: "number", ValueKind.REAL: "number", ValueKind.BLOB: "blob"}


def _of(kind: ValueKind) -> str:
    """The kind for comparisons: values of the same one can be equal."""
    return _COMPARED.get(kind, "text")
