"""The tables of a source as data for checking rules: all that the role can see, published or not, each with the
statements that are still needed to receive its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from headwater.decode.types import values_of
from headwater.errors import HeadwaterError
from headwater.source.catalog.computed import with_computed
from headwater.source.catalog.publications import PublicationError, load_publications, memberships
from headwater.source.catalog.published import PublishedTable, load_types, published_tables
from headwater.source.catalog.read import identifies, load_leaves
from headwater.source.connect import SourceSettings, connect, of_each, source_errors
from headwater.source.readiness.finding import Finding, Reading, shortened, unreadable
from headwater_rules.plan import TablePattern
from headwater_rules.propose.outline import OutlinedTable, Reference
from headwater_rules.schema import (
    NotStreamed,
    SeenSchema,
    SourceColumn,
    SourceSchema,
    SourceTable,
    ValueKind,
    not_compared,
)

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
    """The tables of one source under its tag. Raises SourceUnreachableError or SourceRefusedError."""
    with connect(settings) as conn, source_errors(settings):
        rows = conn.execute(_COLUMNS).fetchall()
        types = load_types(conn, {oid for *_, oid, _ in rows if oid is not None})
        there = all_tables(conn)
        lacking: dict[int, tuple[str, ...]] = {}
        sent: dict[int, set[str]] = {}
        with suppress(PublicationError):  # nothing can be told while the publications can't be used at all
            published = published_tables(conn, settings.publications)
            lacking = _lacking_statements(conn, settings, there, published)
            for each in published:
                if not each.locked:
                    sent[each.relation.oid] = {column.name for column in each.relation.columns}
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
    others = [
        NotStreamed(settings.tag, other.schema, other.name, other.form) for other in there if not other.publishable
    ]
    return SourceSchema(tuple(tables), tuple(others))


def see_schema(sources: Sequence[SourceSettings], text: str = "") -> SeenSchema:
    """The tables of the sources that can be read now, if any can; the note names the others. With the text of a sync
    config, what sources say of its computed tables too."""
    if not sources:
        return not_compared("no source is configured")
    schemas: list[tuple[SourceSettings, SourceSchema]] = []
    unread: list[tuple[SourceSettings, HeadwaterError]] = []
    for source, found in zip(sources, of_each(sources, _schema_or_error), strict=True):
        if isinstance(found, HeadwaterError):
            unread.append((source, found))
        else:
            schemas.append((source, found))
    if not schemas:
        several = len(unread) > 1
        return not_compared("; ".join(f"{source.name}: {error}" if several else str(error) for source, error in unread))
    seen = _seen(schemas, unread)
    if seen.schema is None or not text:
        return seen
    return replace(seen, schema=with_computed(seen.schema, [source for source, _ in schemas], text))


def schema_of(sources: Sequence[SourceSettings]) -> SeenSchema:
    """The tables of all sources. Raises the error of one that can't be read."""
    return _seen(list(zip(sources, of_each(sources, read_schema), strict=True)))


def _schema_or_error(source: SourceSettings) -> SourceSchema | HeadwaterError:
    try:
        return read_schema(source)
    except HeadwaterError as error:
        return error


def _seen(
    schemas: Sequence[tuple[SourceSettings, SourceSchema]], unread: Sequence[tuple[SourceSettings, HeadwaterError]] = ()
) -> SeenSchema:
    where = ", ".join(f"{source.name} ({source.address})" for source, _ in schemas)
    note = f"compared with the tables of source {where} at {datetime.now(UTC):%Y-%m-%d %H:%M:%SZ}"
    note += "".join(f"; not with those of source {source.name}: {error}" for source, error in unread)
    schema = SourceSchema.of(schema for _, schema in schemas)
    return SeenSchema(replace(schema, unread=tuple(source.tag for source, _ in unread)), note)


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table of the source. `kind` is relkind of pg_class; `keyless`: nothing identifies its rows, though its replica
    identity is not NOTHING or FULL; `ancestors` are the oids of the tables that it is a partition of, `heirs` those of
    the tables that inherit from it and are no partitions."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    keyless: bool
    ancestors: list[int]
    heirs: list[int]

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def publishable(self) -> bool:
        """Whether Postgres can publish it: not a view, a foreign table or an unlogged table."""
        return self.kind in "rp" and self.persistence == "p"

    @property
    def form(self) -> str:
        """What it is, in words."""
        return FORMS.get(self.kind, "an unlogged table" if self.persistence != "p" else "a table")


FORMS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
"""What is named like a table and is none, by relkind of pg_class."""

_TABLES = f"""
select c.oid::int8 as oid, n.nspname as schema, c.relname as name, c.relkind::text as kind,
       c.relpersistence::text as persistence,
       c.relreplident not in ('n', 'f') and not exists (select from pg_index i where {identifies("c")}) as keyless,
       case when c.relispartition then array(
         select relid::oid::int8 from pg_partition_ancestors(c.oid) where relid <> c.oid) else '{{}}' end as ancestors,
       case when c.relkind = 'r' and c.relhassubclass then array(
         select inhrelid::int8 from pg_inherits where inhparent = c.oid) else '{{}}' end as heirs
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
order by n.nspname, c.relname
"""


def all_tables(conn: psycopg.Connection) -> list[NamedTable]:
    """All tables of the source, views included."""
    with conn.cursor(row_factory=class_row(NamedTable)) as cursor:
        return cursor.execute(_TABLES.encode()).fetchall()


def named_tables(
    tables: Sequence[NamedTable], tag: str, patterns: Sequence[TablePattern], *, exact: bool = False
) -> list[NamedTable]:
    """The tables that the patterns name; with `exact`, only by patterns without wildcard."""
    wanted = [pattern for pattern in patterns if pattern.exact or not exact]
    return [table for table in tables if any(p.matches(tag, table.schema, table.name) for p in wanted)]


def to_publish(tables: Sequence[NamedTable]) -> list[NamedTable]:
    """The tables that a publication has to list. Partitions are left out where their root is listed."""
    usable = [table for table in tables if table.publishable]
    listed = {table.oid for table in usable}
    return [table for table in usable if not listed.intersection(table.ancestors)]


def lacking(conn: psycopg.Connection, publications: Sequence[str], tables: Sequence[NamedTable]) -> list[NamedTable]:
    """The tables that no publication publishes, neither directly nor as partitions."""
    known = load_publications(conn, publications)
    if any(publication.all_tables for publication in known.values()):
        return []
    present = set(memberships(conn, list(known))) | _listed(conn, list(known))
    return [table for table in tables if not present.intersection((table.oid, *table.ancestors))]


def listed(tables: Sequence[NamedTable]) -> sql.Composed:
    """The tables as SQL, for a statement on a publication."""
    # ONLY: children by inheritance are tables of their own, published when the sync config names them
    names = [sql.SQL("{}" if table.kind == "p" else "ONLY {}").format(table.identifier) for table in tables]
    return sql.SQL(", ").join(names)


def add_statement(conn: psycopg.Connection, publication: str, tables: Sequence[NamedTable]) -> str:
    add = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(publication), listed(tables))
    return add.as_string(conn)


def identity_statement(conn: psycopg.Connection, table: NamedTable) -> str:
    return sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table.identifier).as_string(conn)


def unpublished_findings(
    conn: psycopg.Connection, settings: SourceSettings, patterns: Sequence[TablePattern]
) -> list[Finding]:
    """Why existing tables that the patterns name are not streamed, and patterns that match no table."""
    named = named_tables(all_tables(conn), settings.tag, patterns)
    missing = lacking(conn, settings.publications, to_publish(named))
    barred = unreadable(conn, readings(conn, missing))
    rights = dict.fromkeys(finding for findings in barred.values() for finding in findings)
    return [*unpublished(conn, settings, missing), *rights, *_absent(settings, patterns, named), *_inherited(named)]


def _lacking_statements(
    conn: psycopg.Connection,
    settings: SourceSettings,
    there: Sequence[NamedTable],
    published: Sequence[PublishedTable],
) -> dict[int, tuple[str, ...]]:
    """By oid, the statements that are needed to receive the rows of a table, where any are."""
    readable = {table.relation.oid: Reading.of(table) for table in published}
    tables = to_publish(there)
    missing = {
        table.oid: unpublished(conn, settings, [table]) for table in lacking(conn, settings.publications, tables)
    }
    barred = unreadable(conn, [readable.get(each.oid, each) for each in readings(conn, tables)])
    return {
        table.oid: tuple(statement for finding in found for statement in finding.sql)
        for table in tables
        if (found := [*missing.get(table.oid, ()), *barred.get(table.oid, ())])
    }


def readings(conn: psycopg.Connection, tables: Sequence[NamedTable]) -> list[Reading]:
    """What has to be readable for each table."""
    leaves = load_leaves(conn, [table.oid for table in tables]) if tables else {}
    return [Reading(table.oid, table.qualified_name, leaves.get(table.oid, ())) for table in tables]


def unpublished(conn: psycopg.Connection, settings: SourceSettings, tables: Collection[NamedTable]) -> list[Finding]:
    """The findings for tables that no publication publishes."""
    publication, found = settings.publications[0], []
    keyed = [table for table in tables if not table.keyless]
    if keyed:
        verb = "is" if len(keyed) == 1 else "are"
        names = shortened([table.qualified_name for table in keyed])
        what = f"{names} {verb} not published: no row reaches a device"
        found.append(Finding.lacking("HW_2030", what, add_statement(conn, publication, keyed)))
    for table in tables:
        if table.keyless:
            statements = (identity_statement(conn, table), add_statement(conn, publication, [table]))
            what = f"{table.qualified_name} is not published, and has no key to tell its rows apart"
            fix = f"add a primary key, or run {statements[0]}; then run {statements[1]}"
            found.append(Finding("HW_2030", what, fix, sql=statements))
    return found


def _inherited(named: Sequence[NamedTable]) -> list[Finding]:
    """Tables that are named, and not all that inherit from them: a row of an heir is not one of its parent here."""
    there, findings = {table.oid for table in named}, []
    for table in named:
        if lacking := len({*table.heirs} - there):
            tables = (
                "a table inherits from it that is" if lacking == 1 else f"{lacking} tables inherit from it that are"
            )
            what = f"of {table.qualified_name} only its own rows reach devices: {tables} not named in the sync config"
            findings.append(Finding("HW_2035", what, _HEIRS, fatal=False))
    return findings


_HEIRS = (
    "name them, too (a pattern such as m% names many); in place of a hypertable, whose chunks come and go, use a table"
    " that is partitioned by PARTITION BY"
)


def _absent(settings: SourceSettings, patterns: Sequence[TablePattern], tables: Sequence[NamedTable]) -> list[Finding]:
    findings = []
    for pattern in patterns:
        found = named_tables(tables, settings.tag, [pattern])
        if pattern.computed or pattern.tag != settings.tag or any(table.publishable for table in found):
            continue
        what = f"no table matches {pattern.schema}.{pattern.name}, which the sync config names"
        fix = "create it, or correct the name in the sync config"
        if found:
            what = (
                f"{found[0].qualified_name}, which the sync config names, is {found[0].form}: no row reaches a device"
            )
            fix = "name the tables that hold its rows, or make it an ordinary table: Postgres streams no other"
        findings.append(Finding("HW_2019", what, fix, fatal=False))
    return findings


def _listed(conn: psycopg.Connection, publications: list[str]) -> set[int]:
    rows = conn.execute(
        """select r.prrelid::int8 from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
           where p.pubname = any(%s)""",
        [publications],
    ).fetchall()
    return {oid for (oid,) in rows}


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


_KEYS = f"""
select c.oid::int8, array(
  select a.attname::text from pg_attribute a left join pg_index i on {identifies("c")}
  where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    and (c.relreplident = 'f' or a.attnum = any(i.indkey))
  order by coalesce(array_position(i.indkey::int2[], a.attnum), a.attnum))
from pg_class c where c.oid = any(%s::oid[])
"""

_OVERVIEW = """
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
    return {oid: tuple(names) for oid, names in conn.execute(_KEYS.encode(), [list(oids)]).fetchall()}


def read_overview(settings: SourceSettings) -> list[SeenTable]:
    """The tables of a source, by schema and name. Raises SourceUnreachableError or SourceRefusedError."""
    with connect(settings) as conn, source_errors(settings):
        rows = conn.execute(_OVERVIEW).fetchall()
        types = load_types(conn, {row[3] for row in rows})
    return [
        SeenTable(
            schema,
            table,
            tuple(SeenColumn(name, told, plain, values_of(oid, types).kind) for *_, name, oid, told, plain in columns),
        )
        for (schema, table), columns in groupby(rows, key=lambda row: (row[0], row[1]))
    ]


_OUTLINE = """
select n.nspname, c.relname, c.oid::int8,
  c.relrowsecurity and exists (select from pg_policy where polrelid = c.oid), coalesce((
    select array_agg(a.attname::text order by k.place)
    from pg_index i cross join unnest(i.indkey) with ordinality k (number, place)
      join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
    where i.indrelid = c.oid and i.indisprimary), '{}'), (
    -- As the last analysis counted; before the first one by its size, at 100 bytes for each row
    select coalesce(sum(case when l.reltuples < 0 then pg_relation_size(l.oid) / 100 else l.reltuples end), 0)::int8
    from (select c.oid union select relid::oid from pg_partition_tree(c.oid) where isleaf) parts (oid)
      join pg_class l on l.oid = parts.oid
    where l.relkind = 'r')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition
"""

_DETAILS = """
select a.attrelid::int8, a.attname, a.attgenerated <> '' or a.attidentity = 'a',
  a.attnotnull and not a.atthasdef and a.attidentity = '', coalesce((
    select array_agg(e.enumlabel::text order by e.enumsortorder) from pg_enum e where e.enumtypid = a.atttypid), '{}')
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0 and not a.attisdropped
"""

_REFERENCES = """
select k.conrelid::int8, a.attname, n.nspname, c.relname, b.attname,
  k.confdeltype = 'c' and a.attnotnull
from pg_constraint k
  join pg_class c on c.oid = k.confrelid join pg_namespace n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
  join pg_attribute b on b.attrelid = k.confrelid and b.attnum = k.confkey[1]
where k.contype = 'f' and k.conparentid = 0 and cardinality(k.conkey) = 1
order by k.conrelid, a.attnum
"""


def read_outline(settings: SourceSettings) -> tuple[OutlinedTable, ...]:
    """All tables but partitions, in the order of their names. Raises SourceUnreachableError or SourceRefusedError."""
    schema = read_schema(settings)
    references: dict[int, list[Reference]] = defaultdict(list)
    computed: dict[int, set[str]] = defaultdict(set)
    required: dict[int, set[str]] = defaultdict(set)
    choices: dict[int, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    with connect(settings) as conn, source_errors(settings):
        known = {(schema_name, name): found for schema_name, name, *found in conn.execute(_OUTLINE.encode())}
        for oid, column, schema_name, name, target, owning in conn.execute(_REFERENCES.encode()):
            references[oid].append(
                Reference(column, schema_name, name, target, owning=owning, tag=settings.written_tag)
            )
        for oid, column, is_computed, is_required, labels in conn.execute(_DETAILS):
            if is_computed or is_required:
                (computed if is_computed else required)[oid].add(column)
            if labels:
                choices[oid].append((column, tuple(labels)))
    found = []
    for table in schema.tables:
        if (table.schema, table.name) in known:
            oid, secured, key, rows = known[table.schema, table.name]
            found.append(
                OutlinedTable(
                    table.schema, table.name, table.columns, tuple(key), tuple(references[oid]), rows,
                    frozenset(computed[oid]), frozenset(required[oid]), tuple(choices[oid]), secured,
                    settings.written_tag,
                )
            )  # fmt: skip
    return tuple(found)
