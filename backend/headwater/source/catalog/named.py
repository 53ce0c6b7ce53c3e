"""The source's tables that a sync config names, and which of them no publication publishes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from headwater.source.catalog.leaves import load_leaves
from headwater.source.catalog.publications import PublicationUnusable, load_publications, memberships
from headwater.source.catalog.published import published_tables
from headwater.source.connect import SourceSettings
from headwater.source.readiness.access import Reading, unreadable
from headwater.source.readiness.finding import Finding
from headwater_rules.plan import TablePattern

_NAMED = 10


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

_TABLES = """
select c.oid::int8 as oid, n.nspname as schema, c.relname as name, c.relkind::text as kind,
       c.relpersistence::text as persistence,
       c.relreplident <> 'n' and c.relreplident <> 'f' and not exists (
         select from pg_index i where i.indrelid = c.oid and i.indisvalid and i.indimmediate
           and case c.relreplident when 'd' then i.indisprimary else i.indisreplident end) as keyless,
       case when c.relispartition then array(
         select relid::oid::int8 from pg_partition_ancestors(c.oid) where relid <> c.oid) else '{}' end as ancestors,
       case when c.relkind = 'r' and c.relhassubclass then array(
         select inhrelid::int8 from pg_inherits where inhparent = c.oid) else '{}' end as heirs
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
order by n.nspname, c.relname
"""


def all_tables(conn: psycopg.Connection) -> list[NamedTable]:
    """All tables of the source, views included."""
    with conn.cursor(row_factory=class_row(NamedTable)) as cursor:
        return cursor.execute(_TABLES).fetchall()


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
    """The statement that adds the tables to a publication."""
    add = sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(publication), listed(tables))
    return add.as_string(conn)


def identity_statement(conn: psycopg.Connection, table: NamedTable) -> str:
    """The statement that gives a table without key a replica identity."""
    return sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table.identifier).as_string(conn)


def unpublished_findings(
    conn: psycopg.Connection, settings: SourceSettings, patterns: Sequence[TablePattern]
) -> list[Finding]:
    """Why existing tables that the patterns name are not streamed, and patterns that match no table. Nothing while a
    publication is missing, which is another finding."""
    if len(load_publications(conn, settings.publications)) < len(set(settings.publications)):
        return []
    named = named_tables(all_tables(conn), settings.tag, patterns)
    missing = lacking(conn, settings.publications, to_publish(named))
    barred = unreadable(conn, readings(conn, missing))
    rights = dict.fromkeys(finding for findings in barred.values() for finding in findings)
    return [*unpublished(conn, settings, missing), *rights, *_absent(settings, patterns, named), *_inherited(named)]


def lacking_statements(conn: psycopg.Connection, settings: SourceSettings) -> dict[int, tuple[str, ...]]:
    """By oid, the statements that are needed to receive the rows of a table, where any are. Nothing where the
    publications can't be used at all."""
    try:
        published = {table.relation.oid: Reading.of(table) for table in published_tables(conn, settings.publications)}
    except PublicationUnusable:
        return {}
    tables = to_publish(all_tables(conn))
    missing = {
        table.oid: unpublished(conn, settings, [table]) for table in lacking(conn, settings.publications, tables)
    }
    barred = unreadable(conn, [published.get(each.oid, each) for each in readings(conn, tables)])
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
        names = [table.qualified_name for table in keyed]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        verb = "is" if len(names) == 1 else "are"
        what = f"{', '.join(names[:_NAMED])}{more} {verb} not published: no row reaches a device"
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
        if pattern.tag != settings.tag or any(table.publishable for table in found):
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
