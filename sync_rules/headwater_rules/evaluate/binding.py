"""Binds expressions of a plan to the positions of a table's values, and runs them: one by one, or many over one row as
one statement, because to run one takes SQLite longer than most expressions of rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from operator import itemgetter

import orjson

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.engine import engine, renumber, select_sql, used
from headwater_rules.evaluate.naming import key_text
from headwater_rules.plan import (
    NOW,
    Expr,
    RowFunction,
    TablePattern,
    Value,
    element_column,
    joined_output,
    shard_of,
    tag_of,
)

Row = tuple[Value, ...]


_EITHER = re.compile(r"(?:coalesce|ifnull)\(\?\d+(?:, \?\d+)+\)")


def lacking(exprs: Iterable[Expr], columns: Container[str]) -> list[str]:
    """The columns that expressions need and a table with `columns` lacks. Of a `coalesce(a, b)` that is compared with
    the request's values, which takes a column by its name before and after it was renamed, one is enough. Within a
    condition all are needed: `coalesce(a, b) IS NULL` would be true of rows that `a` keeps back."""
    return list(dict.fromkeys(name for expr in exprs for name in _lacking(expr, columns)))


def _lacking(expr: Expr, columns: Container[str]) -> Iterable[str]:
    names = [expr.inputs[number - 1] for number in used(expr.sql)]
    if _EITHER.fullmatch(expr.sql) and any(name in columns for name in names):
        return ()
    return (name for name in names if not name.startswith("\0") and name not in columns)  # `\0`: no column


class Layout:
    """Positions in the tuple that an expression sees: columns, then the row id, the time, and constants, among them
    places for values of joined rows. `source` is the tag of the table's source, or for a shard `tag/shard`."""

    def __init__(self, source: str, schema: str, table: str, columns: tuple[str, ...]) -> None:
        self.tag, self.shard = tag_of(source), shard_of(source)
        self.schema = schema
        self.table = table
        self.columns = columns
        self._positions = {name: position for position, name in enumerate(columns)}
        self._constants: list[Value | _Place] = []
        self._used: set[str] = set()
        self._all = False
        self._extended = False
        self.has_clock = False  # whether an expression uses the time
        self.joined: dict[tuple[str, int], int] = {}  # where among the constants outputs of joins have their places

    def matches(self, pattern: TablePattern) -> bool:
        return pattern.matches(self.tag, self.schema, self.table)

    def lacking(self, exprs: Iterable[Expr]) -> list[str]:
        """The columns that the expressions need and the table lacks."""
        return lacking(exprs, self._positions)

    def need_all(self) -> None:
        self._all = True

    def needed(self) -> frozenset[str] | None:
        """The columns whose values are used; None when all are."""
        return None if self._all else frozenset(self._used)

    def constants(self) -> tuple[Value, ...] | None:
        """The values after row id and time; None when no expression uses anything but columns."""
        if not self._extended:
            return None
        return tuple(None if isinstance(value, _Place) else value for value in self._constants)

    @staticmethod
    def row(values: Sequence[Value], row_id: str, now: int | None, constants: tuple[Value, ...] | None) -> Row:
        """The tuple of a row, with what `constants` gave once all expressions were bound."""
        return tuple(values) if constants is None else (*values, row_id, now, *constants)

    def position(self, name: str, pattern: TablePattern) -> int:
        """The position of the input `name` of an expression over a row of `pattern`."""
        known = self._positions.get(name)
        if known is not None:
            self._used.add(name)
            return known
        self._extended = True
        output = joined_output(name)
        if output is not None:
            if output not in self.joined:
                self.joined[output] = len(self._constants)
                self._constants.append(_Place())
            return len(self.columns) + 2 + self.joined[output]
        match name:
            case RowFunction.ROW_ID.value:
                return len(self.columns)
            case _ if name == NOW:
                self.has_clock = True
                return len(self.columns) + 1
            case RowFunction.TABLE_NAME.value:
                return self._constant(self.table)
            case RowFunction.SCHEMA.value:
                return self._constant(self.schema)
            case RowFunction.SOURCE.value:
                return self._constant(self.shard or self.tag)
            case RowFunction.TABLE_SUFFIX.value:
                wild = pattern.name.endswith("%")
                return self._constant(self.table[len(pattern.name) - 1 :] if wild else "")
            case _:
                return self._constant(None)  # a column that the table lacks

    def _constant(self, value: Value) -> int:
        if value not in self._constants:
            self._constants.append(value)
        return len(self.columns) + 2 + self._constants.index(value)


class _Place:
    """Stands among constants for a value that each row has of its own."""


class RowStatement:
    """A prepared SELECT of `values` over the elements of `arrays` that pass the `filters`. In all of them `?i` is the
    value at the i-th of `positions` in a row."""

    __slots__ = ("_arrays", "_pick", "_sql", "filters", "positions", "values")

    def __init__(
        self, values: Sequence[str], arrays: Sequence[str], filters: Sequence[str], positions: Sequence[int]
    ) -> None:
        self.values = values
        self.filters = filters
        self.positions = positions
        self._arrays = bool(arrays)
        self._sql = select_sql(values, arrays, filters)
        self._pick = picker(positions)

    @property
    def simple(self) -> bool:
        """Whether it either filters a row or computes values of it. What does both may compute only what passed."""
        return not self._arrays and bool(self.values) != bool(self.filters)

    @property
    def width(self) -> int:
        """How many values tell all about a row, if it is simple."""
        return len(self.values) or 1

    def check(self) -> None:
        """Prepare without running. Raises EvaluationError."""
        engine().check(self._sql)

    def rows(self, row: Row) -> list[Row]:
        """The computed values, once for each way in which the row passes the filters. Raises EvaluationError."""
        return engine().rows(self._sql, self._pick(row))


class Bound:
    """The expressions of one source, bound. Plain columns are positions from the start of the row; values computed by
    SQLite are appended to the row, so their positions count from its end."""

    def __init__(self, layout: Layout, pattern: TablePattern, filters: Sequence[Expr], each: Sequence[Expr]) -> None:
        self._layout = layout
        self._pattern = pattern
        self._bindings: dict[int, int] = {}
        self._computed: list[str] = []
        self._arrays = [self._sql(expr) for expr in each]
        self._filters = [self._sql(expr) for expr in filters]

    def position(self, expr: Expr) -> int:
        """The position of the value of `expr` in a row to which this source's computed values are appended."""
        if expr.sql == "?1" and element_column(expr.inputs[0]) is None:
            return self._layout.position(expr.inputs[0], self._pattern)
        sql = self._sql(expr)
        if sql not in self._computed:
            self._computed.append(sql)
        return -1 - self._computed.index(sql)

    def statement(self) -> RowStatement | None:
        """The statement to run for a row; None when every value is a plain column and every row passes."""
        if not (self._filters or self._arrays or self._computed):
            return None
        return RowStatement(self._computed[::-1], self._arrays, self._filters, tuple(self._bindings))

    def _sql(self, expr: Expr) -> str:
        return renumber(expr.sql, [self._target(name) for name in expr.inputs])

    def _target(self, name: str) -> str:
        element = element_column(name)
        if element is not None:
            return element
        position = self._layout.position(name, self._pattern)
        return f"?{self._bindings.setdefault(position, len(self._bindings) + 1)}"


def picker(positions: Sequence[int]) -> Callable[[Row], Row]:
    """A function from a row to the tuple of its values at the positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    if not positions:
        return lambda _: ()
    only = positions[0]
    return lambda row: (row[only],)


_MOST_COLUMNS = 500
"""Of a statement. SQLite allows 2,000."""

_MOST_CHARACTERS = 12_000
"""Of a statement. One of more than 16 KiB would be prepared again for each row."""

_EACH = 24
"""Characters around a column, with numbers that grow."""

_PASSED: Sequence[Row] = ((),)
_LEFT_OUT: Sequence[Row] = ()


def run_together(statements: Sequence[RowStatement]) -> list[Group]:
    """Groups of the statements, all of which must be `simple`, in their order."""
    groups: list[list[RowStatement]] = []
    columns = characters = 0
    for statement in statements:
        size = sum(map(len, statement.values or statement.filters)) + _EACH * statement.width
        columns, characters = columns + statement.width, characters + size
        if not groups or columns > _MOST_COLUMNS or characters > _MOST_CHARACTERS:
            groups.append([])
            columns, characters = statement.width, size
        groups[-1].append(statement)
    return [Group(group) for group in groups]


class Group:
    """Simple statements as one."""

    __slots__ = ("_parts", "_pick", "_sql")

    def __init__(self, statements: Sequence[RowStatement]) -> None:
        bindings: dict[int, int] = {}
        columns: list[str] = []
        self._parts: list[tuple[int, int]] = []  # where the values of a statement begin and end; no end for a filter
        for statement in statements:
            targets = [f"?{bindings.setdefault(at, len(bindings) + 1)}" for at in statement.positions]
            start = len(columns)
            columns += [renumber(sql, targets) for sql in _columns(statement)]
            self._parts.append((start, len(columns) if statement.values else 0))
        self._sql = select_sql(columns, (), ())
        self._pick = picker(tuple(bindings))

    def rows(self, row: Row) -> Iterator[Sequence[Row] | None]:
        """What `RowStatement.rows` gives, for each of the statements; None for all when one fails, since only by itself
        it says which."""
        try:
            (values,) = engine().rows(self._sql, self._pick(row))
        except EvaluationError:
            return (None for _ in self._parts)
        return ((values[start:end],) if end else _PASSED if values[start] else _LEFT_OUT for start, end in self._parts)


def _columns(statement: RowStatement) -> Sequence[str]:
    if statement.values:
        return statement.values
    return [f"({' AND '.join(f'({each})' for each in statement.filters)}) IS TRUE"]


def key_of(name: str, positions: tuple[int, ...]) -> Callable[[Row], str | None]:
    """A function from a row to `key_text` of the values at these positions."""
    if not positions:
        constant = key_text(name, ())
        return lambda _: constant
    if len(positions) > 1:
        pick = itemgetter(*positions)
        return lambda row: key_text(name, pick(row))
    only = positions[0]
    head = f"{name}["

    def single(row: Row) -> str | None:
        value = row[only]
        if type(value) is str:
            return f"{head}{orjson.dumps(value).decode()}]"
        return key_text(name, (value,))

    return single
