"""Collects findings about a query during translation: errors inside expressions, so that later errors are found too,
and, if the source's schema is known, names and comparisons that do not fit it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from headwater_rules.compiler.checks import SourceChecks, Written
from headwater_rules.compiler.expressions.fragment import REQUEST, Frag, Kind
from headwater_rules.compiler.relations import Column, Each, Everything, Table
from headwater_rules.errors import Code, Place, Report, RuleError, Severity, place_in
from headwater_rules.plan import TablePattern
from headwater_rules.schema import SourceColumn, ValueKind
from headwater_rules.text.sqltext import SqlText

_NUMBERS = frozenset({Kind.CERTAIN, Kind.LOGICAL, Kind.INTEGER, Kind.NUMBER})
_NEVER_JSON = ("uuid", "timestamp", "date", "time", "interval", "numeric", "inet", "cidr", "money")
_MAX_SHOWN = 60
_SIZE_PER_WORD = 300  # building so large an expression takes as long as compiling a word
_ELEMENT = "\x00element"  # after an array: an element of it is meant


class Watch:
    """Findings for one query, whose tables are `instances`."""

    def __init__(self, checks: SourceChecks | None, instances: Sequence[Table | Each], report: Report) -> None:
        self._checks = checks
        self._instances = instances
        self._report = report

    def failed(self, error: RuleError) -> Frag:
        """Report an error, and return a placeholder value. The query is rejected in the end."""
        self._report.add(error)
        return Frag(("NULL",), Kind.ANY, error.place or place_in("", 0, 0))

    def built(self, value: Frag) -> None:
        """See `Watcher`."""
        self._report.spend(value.size // _SIZE_PER_WORD, value.place)

    def cases(self, node: exp.Select, text: SqlText) -> None:
        """Report names in a SELECT that SQL converts to lower case."""
        for found in node.find_all(exp.Identifier):
            name = str(found.name)
            if not found.args.get("quoted") and name != name.lower() and found.parent_select is node:
                message = f"`{name}` is written without quotes and so means `{name.lower()}`"
                hint = f'write "{name}" in quotes to keep the case'
                place = text.place_of(found)
                self._report.add(RuleError(Code.LOWERED, message, place, hint, Severity.WARNING))

    def table(self, table: Table, node: exp.Identifier, text: SqlText) -> None:
        if self._checks is not None:
            self._checks.table(table.pattern, _written(node, text))

    def column(self, table: Table, name: str, node: exp.Identifier, text: SqlText) -> None:
        if self._checks is not None:
            self._checks.column(table.pattern, name, _written(node, text))

    def compared(self, left: Frag, right: Frag, place: Place, *, equality: bool = True) -> None:
        """Report a comparison of a number with text, or with a blob. The language converts neither."""
        if self._checks is None:
            return
        sides = self._side(left), self._side(right)
        if None in (sides[0].kind, sides[1].kind) or sides[0].kind == sides[1].kind:
            return
        what = "they are never equal" if equality else "all of one kind are greater than all of the other"
        message = f"{sides[0].description} and {sides[1].description}: {what}"
        self._checks.find(Code.NEVER_EQUAL, message, place, _cast_hint(sides[0], sides[1], place))

    def searched(self, left: Frag, array: Frag, place: Place) -> None:
        """Report a search for a number among texts or the other way round, or in a value that is not an array."""
        if self._checks is None:
            return
        self.json(array, array.place, "`IN`")
        self.compared(left, replace(array, parts=(*array.parts, _ELEMENT)), place)

    def json(self, value: Frag, place: Place, what: str) -> None:
        """Report that `what` reads a column that can't hold JSON."""
        known = self._column(value)
        if self._checks is None or known is None:
            return
        kind, column = known
        plain = kind in {ValueKind.INTEGER, ValueKind.REAL, ValueKind.BLOB} or column.type.startswith(_NEVER_JSON)
        if plain and kind is not ValueKind.JSON:
            message = f"{what} needs JSON, and `{column.name}` is of type {column.type}"
            self._checks.find(Code.NOT_JSON, message, place, "use a column of type json, jsonb, an array or JSON text")

    def selected(self, table: Table, columns: Sequence[Column | Everything], place: Place) -> None:
        """Report columns of the synced table that devices don't get, and rows without a column `id`."""
        if self._checks is None or not self._checks.knows(table.pattern):
            return
        for column in columns:
            if isinstance(column, Everything):
                self._blobs(table.pattern, column.place)
            else:
                self._blob(column)
        named = {column.name for column in columns if isinstance(column, Column)}
        everything = any(isinstance(column, Everything) for column in columns)
        if "id" not in named and (not everything or self._checks.lacks_id(table.pattern)):
            message = f"no column `id` is selected from `{table.pattern.name}`: rows get `row_id()` as their id"
            hint = "select `… AS id`, or `row_id() AS id` if that is meant"
            self._checks.find(Code.NO_ID, message, columns[0].place if columns else place, hint, grave=False)

    def _blobs(self, pattern: TablePattern, place: Place) -> None:
        assert self._checks is not None
        for name in self._checks.blobs(pattern):
            message = f"`{name}` of `{pattern.name}` is bytea, and devices get no blobs"
            hint = f"name the columns, with `base64({name}) AS {name}` or `hex({name}) AS {name}` if they need it"
            self._checks.find(Code.BLOB, message, place, hint, grave=False)

    def _blob(self, column: Column) -> None:
        known = self._column(column.value)
        if self._checks is not None and known is not None and known[0] is ValueKind.BLOB:
            message = f"`{column.name}` is bytea, and devices get no blobs"
            name = known[1].name
            hint = f"write `base64({name}) AS {column.name}` or `hex({name}) AS {column.name}`"
            self._checks.find(Code.BLOB, message, column.value.place, hint)

    # kinds of values

    def _column(self, value: Frag) -> tuple[ValueKind, SourceColumn] | None:
        """The source column that a fragment consists of, if any."""
        ref = value.ref
        if self._checks is None or ref is None or ref.table == REQUEST:
            return None
        instance = self._instances[ref.table]
        return self._checks.column_kind(instance.pattern, ref.column) if isinstance(instance, Table) else None

    def _side(self, value: Frag) -> _Side:
        """One side of a comparison."""
        text = _source(value)
        if value.parts[-1] == _ELEMENT:
            return self._element(replace(value, parts=value.parts[:-1]), text)
        known, ref = self._column(value), value.ref
        if known is not None:
            return _Side(text, _of(known[0]), known[1].name, known[1].type)
        if ref is not None and ref.table == REQUEST:
            return _Side(text, "text")
        if ref is not None:
            instance = self._instances[ref.table]
            if isinstance(instance, Each) and ref.column == "value":
                return self._element(instance.array, text)
            return _Side(text, None)
        kind = "number" if value.kind in _NUMBERS else "text" if value.kind is Kind.TEXT else None
        return _Side(text, kind, literal=value.simple)

    def _element(self, array: Frag, text: str) -> _Side:
        known = self._column(array)
        kind = known[1].elements if known is not None else None
        return _Side(text, kind and _of(kind), elements_of=known[1].name if known else "")


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a comparison: its SQL, its kind (number, text or blob), and what it is."""

    text: str
    kind: str | None
    column: str = ""
    type: str = ""
    elements_of: str = ""
    literal: bool = False

    @property
    def description(self) -> str:
        kind = {"number": "a number", "blob": "a blob"}.get(self.kind or "", "text")
        if self.elements_of:
            return f"an element of `{self.elements_of}` is {kind}"
        return f"`{self.column}` ({self.type}) is {kind}" if self.column else f"`{self.text}` is {kind}"


def _cast_hint(left: _Side, right: _Side, place: Place) -> str:
    """The comparison to write instead: cast a column rather than a literal, and to text rather than to a number."""
    if "blob" in {left.kind, right.kind}:
        return "compare `hex(…)` or `base64(…)` of it with text"
    number, other = (left, right) if left.kind == "number" else (right, left)
    if number.type == "boolean":
        return f"write `{number.text}` alone, or `{number.text} = true`: a boolean is 1 or 0 here"
    if number.column and other.literal and _is_number(other.text):
        return f"write {other.text} without the quotes"
    chosen, target = (other, "numeric") if number.literal or number.elements_of else (number, "text")
    cast = f"{chosen.text}::{target}"
    whole = " ".join(place.text.split())
    return (
        f"write `{whole.replace(chosen.text, cast, 1) if chosen.text in whole and len(whole) <= _MAX_SHOWN else cast}`"
    )


def _is_number(literal: str) -> bool:
    return re.fullmatch(r"'[+-]?[0-9]+(\.[0-9]+)?'", literal) is not None


def _of(kind: ValueKind) -> str:
    """The kind for comparisons: values of the same one can be equal."""
    match kind:
        case ValueKind.INTEGER | ValueKind.REAL:
            return "number"
        case ValueKind.BLOB:
            return "blob"
        case _:
            return "text"


def _written(node: exp.Identifier, text: SqlText) -> Written:
    return Written(str(node.name), bool(node.args.get("quoted")), text.place_of(node))


def _source(value: Frag) -> str:
    text = " ".join(value.place.text.split())
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
