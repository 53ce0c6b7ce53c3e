"""LEFT JOIN in a query that selects from its left side.

A device has each row once, so a left join matters only to the alternatives of the condition that read its table. Where
such a condition can't hold of a row whose columns are all null, it holds only with a row that is there, which is what
an inner join asks for; alternatives that don't read the table need no join. What may hold without a row, and what is
selected, reads the row that the join finds, of several one of them.
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
from headwater_rules.compiler.row_joins import one_of_several, optional_row
from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.engine import small_engine
from headwater_rules.plan import Value
from headwater_rules.text.sqltext import unsupported

_NAMED = "name its columns"


def joining(context: Context, condition: Condition, optional: Mapping[int, Condition]) -> Condition:
    """`condition` with the tables of left joins joined where it reads them. `optional` has the ON of each such table,
    by its number. Raises RuleError where a condition may hold although there is no row to join."""
    if not isinstance(condition, Atom):
        items = tuple(joining(context, item, optional) for item in condition.items)
        return All(items) if isinstance(condition, All) else Either(items)
    if condition.absence is not None and _read(context, condition, optional):
        raise unsupported("a row of a left join can't be compared here", condition.node, "write JOIN")
    for number in sorted(_read(context, condition, optional)):
        if not _needs_row(context, condition, number):
            condition = _with_row(context, condition, number, optional)
    read = sorted(_read(context, condition, optional))
    if not read:
        return condition
    joined = replace(condition, tables=condition.tables | frozenset(read))
    return All((joined, *(optional[number] for number in read)))


def selected(
    context: Context, column: SelectedColumn | SelectedStar, optional: Mapping[int, Condition]
) -> SelectedColumn | SelectedStar:
    """A selected column, of which values of left joins are taken from the rows that these find. Raises RuleError."""
    sources = {column.table} if isinstance(column, SelectedStar) else column.value.sources
    for number in sorted(optional.keys() & {context.owner(source) for source in sources}):
        if isinstance(column, SelectedStar):
            raise unsupported(f"`*` of `{_name(context, number)}`, a left join, can't be selected", column.node, _NAMED)
        if number not in column.value.sources:
            raise unsupported("an array of a left join can't be expanded", column.node)
        row = optional_row(context.joins, number, optional[number], column.node)
        if not context.joins.by_id(row):
            context.report.add(one_of_several(context.table_at(number), column.node))
        column = replace(column, value=context.joins.replaced(column.value, row))
    return column


def _with_row(context: Context, atom: Atom, number: int, optional: Mapping[int, Condition]) -> Atom:
    """A condition that may hold where the left join finds no row, with the values of the row that it finds, if any."""
    sources = atom.frag.sources | atom.tables
    if any(source != number and source >= 0 and context.owner(source) == number for source in sources):
        message = f"this condition may hold where the left join finds no row of `{_name(context, number)}`"
        raise unsupported(message, atom.node, "leave arrays of the joined row out of it")
    joins = context.joins
    for draft in joins.of_row(atom.frag, number):
        if not any(_without_row(outer) == (None,) for outer, _ in draft.keys):
            message = f"this condition may find other rows where the left join finds none of `{_name(context, number)}`"
            raise unsupported(message, atom.node, "write NOT EXISTS, comparing a column of the joined row by `=`")
    row = optional_row(joins, number, optional[number], atom.node)
    if not joins.by_id(row) and not joins.is_absence(row, atom.frag):
        context.report.add(one_of_several(context.table_at(number), atom.node))
    link = None if atom.link is None else (joins.replaced(atom.link[0], row), joins.replaced(atom.link[1], row))
    return Atom(joins.replaced(atom.frag, row), link, atom.tables - {number})


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
