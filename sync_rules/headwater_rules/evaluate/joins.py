"""Rows that are evaluated with rows of other tables: binds the joins of a plan to a row's values, and puts in what they
find."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import orjson

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.binding import Bound, Layout, Row, RowStatement, key_of
from headwater_rules.plan import Expr, RowJoin, SyncPlan, Value, joined_output
from headwater_rules.results import UNKNOWN

JoinedRows = Mapping[str, Sequence[str]]
"""Outputs of lookups by key, as `RowJoin` finds other rows: none where there is no row. A key that is not there was not
looked up."""


@dataclass(frozen=True, slots=True)
class BoundJoin:
    """`places` are outputs of the join, each with its position in the row."""

    name: str
    lookup: str
    statement: RowStatement | None
    named: Callable[[Row], str | None]
    keys: tuple[int, ...]
    places: tuple[tuple[int, int], ...]

    def key(self, row: Row) -> str | None:
        """The key of a row; None where a value is null, which no other row has. Raises EvaluationError, also for values
        that no key can have: the other row may have them too."""
        full = row if self.statement is None else row + self.statement.rows(row)[0]
        key = self.named(full)
        if key is None and all(full[position] is not None for position in self.keys):
            raise EvaluationError("rows are joined by a blob or an infinite number")
        return key


def used_joins(exprs: Iterable[Expr]) -> frozenset[str]:
    """The joins that expressions use, by name."""
    outputs = (joined_output(name) for expr in exprs for name in expr.inputs)
    return frozenset(output[0] for output in outputs if output is not None)


def with_keys(exprs: tuple[Expr, ...], joins: Mapping[str, RowJoin]) -> tuple[Expr, ...]:
    """The expressions, and the keys of the joins that they use."""
    return (*exprs, *(key for name in sorted(used_joins(exprs)) if name in joins for key in joins[name].keys))


def _by_join(joined: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (name, output), place in joined.items():
        found.setdefault(name, {})[output] = place
    return found


def bind_joins(layout: Layout, plan: SyncPlan) -> list[BoundJoin]:
    """The joins whose outputs expressions read that were bound to the layout."""
    joins, found = {join.name: join for join in plan.joins}, _by_join(layout.joined)
    return [_bind_join(layout, joins[name], places) for name, places in found.items() if name in joins]


def with_joined(
    joins: Sequence[BoundJoin], row: Row, found: JoinedRows, errors: list[str] | None = None
) -> tuple[Row, frozenset[str]]:
    """A row with the values of the rows that joins find for it, and the names of the joins of which it is not known
    whether there is one. What fails is added to `errors`."""
    values, unknown = list(row), list[str]()
    for join in joins:
        try:
            key = join.key(row)
        except EvaluationError as error:
            unknown.append(join.name)
            if errors is not None:
                errors.append(f"{join.lookup}: {error}")
            continue
        outputs = () if key is None else found.get(key)
        if outputs is None or UNKNOWN in outputs:
            unknown.append(join.name)
        elif outputs:
            joined = joined_values(min(outputs))
            for output, position in join.places:
                values[position] = joined[output] if joined else 1
    return tuple(values), frozenset(unknown)


def _bind_join(layout: Layout, join: RowJoin, places: Mapping[int, int]) -> BoundJoin:
    bound = Bound(layout, join.table, (), ())
    keys = tuple(bound.position(expr) for expr in join.keys)
    first = len(layout.columns) + 2
    at = tuple((output, first + place) for output, place in places.items())
    return BoundJoin(join.name, join.lookup.name, bound.statement(), key_of(join.lookup.name, keys), keys, at)


_LITERAL = re.compile(r"'((?:[^']|'')*)'", re.DOTALL)


@lru_cache(maxsize=10_000)
def joined_values(output: str) -> tuple[Value, ...]:
    """The values of the columns of a joined row, from the output of its lookup: SQL literals, as `quote()` of SQLite
    writes them."""
    return tuple(map(of_literal, orjson.loads(output)))


def of_literal(literal: str) -> Value:
    """The value of a SQL literal that `quote()` has written."""
    if literal == "NULL":
        return None
    if found := _LITERAL.fullmatch(literal):
        return found[1].replace("''", "'")
    if literal.startswith("X'"):
        return bytes.fromhex(literal[2:-1])
    return float(literal) if any(sign in literal for sign in ".eInf") else int(literal)
