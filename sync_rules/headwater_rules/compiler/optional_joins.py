"""LEFT JOIN in a query that selects from its left side.

A device has each row once, so a left join matters only to the alternatives of the condition that read its table. Where
such a condition can't hold of a row whose columns are all null, it holds only with a row that is there, which is what
an inner join asks for; alternatives that don't read the table need no join. Both together are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headwater_rules.compiler.fragment import Frag, Ref, to_expr
from headwater_rules.compiler.names import Context
from headwater_rules.compiler.relations import (
    All,
    Atom,
    Condition,
    Either,
    ExpandedArray,
    SelectedColumn,
    SelectedStar,
    dependencies,
)
from headwater_rules.errors import EvaluationError, RuleError
from headwater_rules.evaluate.engine import small_engine
from headwater_rules.plan import Value
from headwater_rules.text.sqltext import unsupported

_ABSENT = "access can follow from a row that is there, not from one that is missing"


def joining(context: Context, condition: Condition, optional: Mapping[int, Condition]) -> Condition:
    """`condition` with the tables of left joins joined where it reads them. `optional` has the ON of each such table,
    by its number. Raises RuleError where a condition may hold although there is no row to join."""
    if not isinstance(condition, Atom):
        items = tuple(joining(context, item, optional) for item in condition.items)
        return All(items) if isinstance(condition, All) else Either(items)
    read = sorted(_read(context, condition, optional))
    for number in read:
        if not _needs_row(context, condition, number):
            name = _name(context, number)
            message = f"this condition may hold where the left join finds no row of `{name}`"
            raise unsupported(message, condition.node, _ABSENT)
    if not read:
        return condition
    joined = replace(condition, tables=condition.tables | frozenset(read))
    return All((joined, *(optional[number] for number in read)))


def refuse_selected(
    context: Context, column: SelectedColumn | SelectedStar, optional: Mapping[int, Condition]
) -> RuleError | None:
    """The error for a column of a table of a left join, which can't be selected."""
    sources = {column.table} if isinstance(column, SelectedStar) else column.value.sources
    for number in sorted(optional.keys() & {context.owner(source) for source in sources}):
        hint = "sync that table by a query of its own, and join on the device"
        return unsupported(f"columns of `{_name(context, number)}`, a left join, can't be selected", column.node, hint)
    return None


def _name(context: Context, number: int) -> str:
    table = context.table_at(number)
    return table.alias or table.pattern.name


def _read(context: Context, atom: Atom, optional: Mapping[int, Condition]) -> frozenset[int]:
    owners = dependencies(atom.frag, context.owner) | {context.owner(number) for number in atom.tables}
    return owners & optional.keys()


def _needs_row(context: Context, atom: Atom, number: int) -> bool:
    """Whether a condition can't hold where the left join finds no row of the table `number`."""
    for source in atom.frag.sources | atom.tables:
        instance = context.instances[source] if source >= 0 else None
        if isinstance(instance, ExpandedArray) and context.owner(source) == number:
            return _without_row(instance.array) == (None,)  # which has no elements
    owners = dependencies(atom.frag, context.owner)
    if owners == {number}:
        return _without_row(atom.frag) in {(0,), (None,)}
    if atom.link is None and len(owners) > 1:
        return True  # refused, as every comparison of several tables other than by `=`
    sides = atom.link or ()
    return any(dependencies(side, context.owner) == {number} and _without_row(side) == (None,) for side in sides)


def _without_row(frag: Frag) -> tuple[Value, ...]:
    """The value of a fragment of one table where all columns are null; empty if it can't be evaluated."""
    expr = to_expr(frag, _column)
    try:
        (row,) = small_engine().rows(f"SELECT {expr.sql}", [None] * len(expr.inputs))
    except EvaluationError:
        return ()
    return (row[0],)


def _column(ref: Ref) -> str:
    return f"{ref.table}.{ref.column}"
