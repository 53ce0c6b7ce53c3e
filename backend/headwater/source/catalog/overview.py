"""A source's tables for people who look at them: what identifies rows, and every column in several spellings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import psycopg

from headwater.decode.kinds import values_of
from headwater.source.catalog.published import load_types
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater_rules.schema import ValueKind


@dataclass(frozen=True, slots=True)
class SeenColumn:
    """A column: its type with modifiers (`character varying(20)[]`), the type's own name (`varchar[]`), and what its
    values are."""

    name: str
    type: str
    type_name: str
    kind: ValueKind


@dataclass(frozen=True, slots=True)
class SeenTable:
    """An ordinary table that the role may do something with."""

    schema: str
    name: str
    columns: tuple[SeenColumn, ...]


_KEYS = """
select c.oid::int8, array(
  select a.attname::text from pg_attribute a
  left join pg_index i on i.indrelid = c.oid and i.indisvalid and i.indimmediate
    and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end
  where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    and (c.relreplident = 'f' or a.attnum = any(i.indkey))
  order by coalesce(array_position(i.indkey::int2[], a.attnum), a.attnum))
from pg_class c where c.oid = any(%s::oid[])
"""

_COLUMNS = """
select n.nspname::text, c.relname::text, a.attname::text, a.atttypid::int8, format_type(a.atttypid, a.atttypmod),
  case when t.typcategory = 'A' and t.typelem <> 0 then e.typname::text || '[]' else t.typname::text end
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
join pg_type t on t.oid = a.atttypid
left join pg_type e on e.oid = t.typelem
where c.relkind = 'r' and c.relpersistence <> 't' and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
  and has_schema_privilege(n.oid, 'USAGE')
  and (has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE')
    or has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE'))
order by 1, 2, a.attnum
"""


def identity_columns(conn: psycopg.Connection, oids: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """By oid of a table, the columns that tell its rows apart in the stream."""
    return {oid: tuple(names) for oid, names in conn.execute(_KEYS, [list(oids)]).fetchall()}


def read_overview(settings: SourceSettings) -> list[SeenTable]:
    """The tables of a source, by schema and name. Raises SourceUnreachable or SourceRefused."""
    with connect(settings) as conn, source_errors(settings):
        rows = conn.execute(_COLUMNS).fetchall()
        types = load_types(conn, {row[3] for row in rows})
    return [
        SeenTable(
            schema,
            table,
            tuple(SeenColumn(name, told, plain, values_of(oid, types).kind) for *_, name, oid, told, plain in columns),
        )
        for (schema, table), columns in groupby(rows, key=lambda row: (row[0], row[1]))
    ]
