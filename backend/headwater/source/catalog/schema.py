"""The tables of a source as data for checking rules: all that the role can see, published or not, each with the
statements that are still needed to receive its rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

import psycopg

from headwater.decode.kinds import values_of
from headwater.errors import HeadwaterError
from headwater.source.catalog.named import all_tables, lacking_statements
from headwater.source.catalog.publications import PublicationUnusable
from headwater.source.catalog.published import load_types, published_tables
from headwater.source.connect import SourceSettings, connect, connection_error
from headwater_rules.schema import NotStreamed, SeenSchema, SourceColumn, SourceSchema, SourceTable, not_compared

_COLUMNS = """
select c.oid::int8, n.nspname, c.relname, a.attname, a.atttypid, pg_catalog.format_type(a.atttypid, a.atttypmod)
from pg_catalog.pg_class c
join pg_catalog.pg_namespace n on n.oid = c.relnamespace
left join pg_catalog.pg_attribute a
  on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relkind in ('r', 'p') and c.relpersistence = 'p'
  and n.nspname <> 'information_schema' and n.nspname not like 'pg\\_%'
order by n.nspname, c.relname, a.attnum
"""


def read_schema(settings: SourceSettings) -> SourceSchema:
    """The tables of one source under its tag. Raises SourceUnreachable or SourceRefused."""
    with connect(settings) as conn:
        try:
            rows = conn.execute(_COLUMNS).fetchall()
            types = load_types(conn, {oid for *_, oid, _ in rows if oid is not None})
            lacking = lacking_statements(conn, settings)
            others = [each for each in all_tables(conn) if not each.publishable]
            sent = _sent_columns(conn, settings)
        except psycopg.Error as error:
            raise connection_error(settings, error) from error
    tables: list[SourceTable] = []
    for (number, schema, table), columns in groupby(rows, key=lambda row: (row[0], row[1], row[2])):
        described = [(name, oid, type_name) for *_, name, oid, type_name in columns if name is not None]
        known = [(name, type_name, values_of(oid, types)) for name, oid, type_name in described]
        tables.append(
            SourceTable(
                settings.tag,
                schema,
                table,
                tuple(SourceColumn(name, text, each.kind, each.elements, each.by_option) for name, text, each in known),
                lacking.get(number, ()),
                tuple(name for name, *_ in known if number in sent and name not in sent[number]),
            )
        )
    return SourceSchema(
        tuple(tables), tuple(NotStreamed(settings.tag, each.schema, each.name, each.form) for each in others)
    )


def _sent_columns(conn: psycopg.Connection, settings: SourceSettings) -> dict[int, frozenset[str]]:
    """The columns of each published table whose values we get, by oid. Nothing where they can't be told now."""
    try:
        published = published_tables(conn, settings.publications)
    except PublicationUnusable:
        return {}
    return {
        each.relation.oid: frozenset(column.name for column in each.relation.columns)
        for each in published
        if not each.locked
    }


def see_schema(sources: Sequence[SourceSettings]) -> SeenSchema:
    """The tables of all sources, if they can be read now."""
    if not sources:
        return not_compared("no source is configured")
    try:
        return schema_of(sources)
    except HeadwaterError as error:
        return not_compared(str(error))


def schema_of(sources: Sequence[SourceSettings]) -> SeenSchema:
    """The tables of all sources. Raises the error of one that can't be read."""
    schema = SourceSchema.of(read_schema(source) for source in sources)
    where = ", ".join(f"{source.tag} ({source.address})" for source in sources)
    return SeenSchema(schema, f"compared with the tables of source {where} at {datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}")
