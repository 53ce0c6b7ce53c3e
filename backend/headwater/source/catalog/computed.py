"""Computed tables as data for checking rules: the columns that Postgres, or Spark, says their queries have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from headwater.decode.types import values_of
from headwater.errors import HeadwaterError
from headwater.source.catalog.published import load_types
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.rows.query import ComputedResult, ComputedTableError, ResultReader
from headwater_rules.compiler.compile import computed_in
from headwater_rules.plan import ComputedTable
from headwater_rules.schema import ComputedFault, SourceColumn, SourceSchema, SourceTable


def with_computed(
    schema: SourceSchema,
    sources: Sequence[SourceSettings],
    text: str,
    spark: Callable[[ComputedTable], ComputedResult] | None = None,
) -> SourceSchema:
    """The same, with the computed tables of a sync config as sources that answer describe them, or `spark`, without
    which its tables stay unknown. Of several sources with one tag, the first is asked."""
    by_tag = {source.tag: source for source in reversed(sources)}
    found: list[SourceTable] = []
    faults: list[ComputedFault] = []
    tables = [each.table for each in computed_in(text) if spark is not None or not each.table.spark]
    for table in tables:
        source = by_tag.get(table.tag)
        try:
            if source is not None:
                result = (
                    spark(table)
                    if table.spark and spark is not None
                    else ResultReader(source, table, threading.Event())
                )
                found.append(_described(source, table, result))
        except ComputedTableError as fault:
            faults.append(ComputedFault(table.name, fault.what, fault.fix))
        except HeadwaterError as error:
            if table.spark:  # else whoever compares with the schema has said why
                faults.append(ComputedFault(table.name, error.what, error.fix, certain=False))
    return replace(schema, tables=(*schema.tables, *found), faults=tuple(faults))


def _described(source: SourceSettings, table: ComputedTable, result: ComputedResult) -> SourceTable:
    with closing(result):
        relation = result.open().relation
    oids = [column.type_oid for column in relation.columns]
    with connect(source) as conn, source_errors(source):
        types = load_types(conn, oids)
        asked = "select o::int8, format_type(o, null) from unnest(%s::oid[]) o"
        names: dict[int, str] = dict(conn.execute(asked, [oids]).fetchall())
    columns = []
    for column in relation.columns:
        values = values_of(column.type_oid, types)
        shown = names[column.type_oid]
        columns.append(SourceColumn(column.name, shown, values.kind, values.elements, values.by_option))
    return SourceTable(table.tag, relation.schema, table.name, tuple(columns))
