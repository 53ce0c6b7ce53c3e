"""Determines the table that a query syncs."""

from __future__ import annotations

from dataclasses import dataclass

from headwater_rules.compiler.expressions.fragment import REQUEST
from headwater_rules.compiler.relations import Column, Context, Each, Everything, Selection, Table
from headwater_rules.errors import Code, Place, RuleError


@dataclass(frozen=True, slots=True)
class Target:
    """The synced table of a query, and the columns selected from it."""

    table: int
    output_table: str | None
    columns: tuple[Column | Everything, ...]


def find_target(context: Context, selection: Selection, place: Place) -> Target:
    """The one table that all selected columns come from. Raises RuleError when there is none or more than one, and for
    columns that are not values of a row."""
    owners: dict[int, Place] = {}
    foreign = [error for column in selection.columns if (error := _foreign(context, column)) is not None]
    for error in foreign[:-1]:
        context.report.add(error)
    if foreign:
        raise foreign[-1]
    for column in selection.columns:
        if isinstance(column, Everything):
            owners.setdefault(column.table, column.place)
            continue
        for source in column.value.sources:
            owners.setdefault(context.owner(source), column.value.place)
    tables = [number for number in sorted(selection.tables) if isinstance(context.instances[number], Table)]
    if not owners and len(tables) == 1:
        owners[tables[0]] = place
    if len(owners) != 1:
        message = "all selected columns must come from one table" if owners else "no column of a table is selected"
        raise RuleError(Code.SINGLE_TABLE, message, list(owners.values())[-1] if owners else place,
                        "sync the other table by a query of its own, under `queries`")  # fmt: skip
    number = next(iter(owners))
    table = context.instances[number]
    assert isinstance(table, Table)
    name = table.alias or (None if table.pattern.name.endswith("%") else table.pattern.name)
    return Target(number, name, selection.columns)


def _foreign(context: Context, column: Column | Everything) -> RuleError | None:
    """The error for a selected value that is not a row's: of the request, or of an array's elements. A device has a row
    once, however many of its elements pass."""
    if isinstance(column, Everything):
        return None
    arrays = [context.instances[source] for source in column.value.sources - {REQUEST}]
    elements = [instance for instance in arrays if isinstance(instance, Each)]
    hint = "select columns of the synced table"
    if REQUEST in column.value.sources or any(REQUEST in instance.array.sources for instance in elements):
        message = f"column `{column.name}` is a value of the request, which cannot be synced"
    elif elements:
        message = f"column `{column.name}` has values of `json_each`, which cannot be selected: a row is synced once"
        hint = "select the array, and expand it in the device's own query"
    else:
        return None
    return RuleError(Code.SINGLE_TABLE, message, column.place, hint)
