"""Computed tables as data for checking rules: the columns that Postgres, or Spark, says their queries have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing

from headwater.decode.types import values_of
from headwater.errors import HeadwaterError
from headwater.source.catalog.published import load_types
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.rows.query import ComputedResult, ComputedTableError, ResultReader
from headwater_rules.plan import ComputedTable
from headwater_rules.schema import DescribedTables, SourceColumn, SourceTable


def describe_computed(
    sources: Sequence[SourceSettings],
    tables: Sequence[ComputedTable],
    spark: Callable[[ComputedTable], ComputedResult],
) -> DescribedTables:
    """Have the sources, or `spark`, describe computed tables. Of several sources with one tag, the first is asked."""
    by_tag = {source.tag: source for source in reversed(sources)}
    found: list[SourceTable] = []
    faults: dict[str, tuple[str, str]] = {}
    unknown: dict[str, tuple[str, str]] = {}
    for table in tables:
        source = by_tag.get(table.tag)
        try:
            if source is not None:
                result = spark(table) if table.spark else ResultReader(source, table, threading.Event())
                found.append(_described(source, table, result))
        except ComputedTableError as fault:
            faults[table.name] = fault.what, fault.fix
        except HeadwaterError as error:
            if table.spark:  # else whoever compares with the schema has said why
                unknown[table.name] = error.what, error.fix
    return DescribedTables(found, faults, unknown)


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
