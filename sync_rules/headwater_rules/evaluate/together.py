"""Runs many statements over one row as one: to run one takes SQLite longer than most expressions of rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.binding import Row, Statement, picker
from headwater_rules.evaluate.engine import engine, renumber, select_sql

_MOST_COLUMNS = 500
"""Of a statement. SQLite allows 2,000."""

_MOST_CHARACTERS = 12_000
"""Of a statement. One of more than 16 KiB would be prepared anew for each row."""

_EACH = 24
"""Characters around a column, with numbers that grow."""

_PASSED: Sequence[Row] = ((),)
_LEFT_OUT: Sequence[Row] = ()


def run_together(statements: Sequence[Statement]) -> list[Group]:
    """Groups of the statements, all of which must be `simple`, in their order."""
    groups: list[list[Statement]] = []
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

    def __init__(self, statements: Sequence[Statement]) -> None:
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
        """What `Statement.rows` gives, for each of the statements; None for all when one fails, since only by itself it
        says which."""
        try:
            (values,) = engine().rows(self._sql, self._pick(row))
        except EvaluationError:
            return (None for _ in self._parts)
        return ((values[start:end],) if end else _PASSED if values[start] else _LEFT_OUT for start, end in self._parts)


def _columns(statement: Statement) -> Sequence[str]:
    if statement.values:
        return statement.values
    return [f"({' AND '.join(f'({each})' for each in statement.filters)}) IS TRUE"]
