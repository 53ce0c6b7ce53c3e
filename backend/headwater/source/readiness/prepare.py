"""Prepares a source: the publication, its tables, and the rights to read them, as far as our own rights allow.

Everything can be repeated: what exists is left alone, and nothing is ever removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from headwater.errors import HeadwaterError
from headwater.source.catalog.publications import load_publications
from headwater.source.catalog.published import published_tables
from headwater.source.catalog.read import TREE
from headwater.source.catalog.schema import (
    NamedTable,
    add_statement,
    all_tables,
    identity_statement,
    lacking,
    listed,
    named_tables,
    readings,
    to_publish,
)
from headwater.source.connect import SourceSettings, connect, connection_error, source_errors
from headwater.source.readiness.checks import SourceNotReadyError, raise_if_fatal, server_findings, source_findings
from headwater.source.readiness.finding import Finding, Reading, unreadable
from headwater.source.rows.query import relations_named, tables_read
from headwater_rules.plan import ComputedTable, TablePattern


@dataclass(frozen=True, slots=True)
class Prepared:
    """The SQL that `prepare` ran, the warnings that are left, and the tables that are published."""

    done: tuple[str, ...]
    warnings: tuple[Finding, ...]
    tables: tuple[str, ...]


class PublishRefusedError(HeadwaterError):
    """The tables can't be published as requested; the fix says how they can."""

    code = "HW_2004"


class MissingRightsError(SourceNotReadyError):
    """Our rights are not enough. The message ends with the missing SQL, for somebody who may run it."""

    def __str__(self) -> str:
        statements = [statement for finding in self.findings for statement in finding.sql]
        return f"{super().__str__()}\n\n{sql_block(statements)}"


def sql_block(statements: Iterable[str]) -> str:
    """Statements for a person to copy, each once and on a line."""
    restart = "  -- takes effect when Postgres is restarted"
    once = dict.fromkeys(statements)
    return "\n".join(f"{each};{restart if each.startswith('ALTER SYSTEM') else ''}" for each in once)


def prepare(
    settings: SourceSettings,
    tables: Sequence[TablePattern] | None,
    *,
    computed: Sequence[ComputedTable] = (),
    admin: SourceSettings | None = None,
    append_only: bool = False,
    ran: Callable[[str], object] = lambda _: None,
) -> Prepared:
    """Publish the tables that match (None: every table, which needs a superuser) and grant the right to read them.

    The SQL runs as `admin`, or else as the role of `settings`, which must then own the tables. An `admin` also gives
    our role REPLICATION and BYPASSRLS where it needs them. `ran` is called with each statement once it is done. A table
    without a key is published only with `append_only`, because Postgres refuses updates and deletes of it from then on.
    What the `computed` tables read is published and granted, too.

    Raises ComputedTableError where Postgres refuses one; MissingRightsError with the SQL that the role may not run;
    PublishRefusedError when tables can't be published; SourceNotReadyError, SourceUnreachableError or
    SourceRefusedError."""
    with connect(settings) as ours, connect(admin or settings, patient=True) as conn:
        own = [table for table in computed if table.tag == settings.tag and not table.spark]
        if tables is not None:
            tables = [*tables, *_read_by(conn, settings, own)]
        findings, statements = _missing(ours, conn, settings, tables, own, append_only=append_only)
        wanted = [*(_of_roles(findings) if admin is not None else ()), *statements]
        done = []
        for statement in wanted:
            if _run(conn, settings, statement):
                done.append(statement)
                ran(statement)
        if wanted:
            findings, statements = _missing(ours, conn, settings, tables, own, append_only=append_only)
        if statements:
            what = f'role "{conn.info.user}" may not run all that is needed'
            fix = "have somebody with the rights run the SQL below, or pass --admin-uri"
            findings.append(Finding("HW_2004", what, fix, sql=tuple(statements)))
        if findings:
            raise MissingRightsError(settings.address, tuple(findings))
        warnings = raise_if_fatal(source_findings(ours, settings, tables), settings)
        published = published_tables(ours, settings.publications)
    return Prepared(tuple(done), tuple(warnings), tuple(table.qualified_name for table in published))


def missing_sql(
    settings: SourceSettings,
    tables: Sequence[TablePattern] | None,
    *,
    computed: Sequence[ComputedTable] = (),
    admin: SourceSettings | None = None,
    append_only: bool = False,
) -> tuple[str, ...]:
    """The statements that `prepare` would run or ask for. Raises what `prepare` raises, but for MissingRightsError."""
    with connect(settings) as ours, connect(admin or settings) as conn:
        own = [table for table in computed if table.tag == settings.tag and not table.spark]
        if tables is not None:
            tables = [*tables, *_read_by(conn, settings, own)]
        findings, statements = _missing(ours, conn, settings, tables, own, append_only=append_only)
    return (*(statement for finding in findings for statement in finding.sql), *statements)


def _read_by(
    conn: psycopg.Connection, settings: SourceSettings, computed: Sequence[ComputedTable]
) -> list[TablePattern]:
    """The tables that computed tables of the source read, as patterns of a sync config name them."""
    with source_errors(settings):
        return [TablePattern(settings.tag, schema, name) for schema, name in sorted(tables_read(conn, computed))]


def _grants_on_views(
    conn: psycopg.Connection, settings: SourceSettings, computed: Sequence[ComputedTable]
) -> list[str]:
    """What our role needs to read views, and their like, that computed tables name. Tables are granted as such."""
    rows = conn.execute(
        """select distinct n.nspname::text, c.relname::text, has_schema_privilege(%(user)s, n.oid, 'USAGE'),
                  has_table_privilege(%(user)s, c.oid, 'SELECT')
           from unnest(%(names)s::text[]) named join pg_class c on c.oid = to_regclass(named)
             join pg_namespace n on n.oid = c.relnamespace
           where c.relkind in ('v', 'm', 'f') order by 1, 2""",
        {"user": settings.user, "names": [name for table in computed for name in relations_named(table.query)]},
    ).fetchall()
    role = sql.Identifier(settings.user)
    schemas = sorted({schema for schema, _, usage, _ in rows if not usage})
    grants = [sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), role) for schema in schemas]
    closed = [sql.Identifier(schema, name) for schema, name, _, select in rows if not select]
    grants += [sql.SQL("GRANT SELECT ON {} TO {}").format(each, role) for each in closed]
    return [grant.as_string(conn) for grant in grants]


def _of_roles(findings: Iterable[Finding]) -> tuple[str, ...]:
    """What findings ask for that gives our role a right, such as REPLICATION or BYPASSRLS."""
    wanted = (statement for finding in findings for statement in finding.sql)
    return tuple(dict.fromkeys(statement for statement in wanted if statement.startswith("ALTER ROLE")))


def _missing(
    ours: psycopg.Connection,
    conn: psycopg.Connection,
    settings: SourceSettings,
    patterns: Sequence[TablePattern] | None,
    computed: Sequence[ComputedTable],
    *,
    append_only: bool,
) -> tuple[list[Finding], list[str]]:
    """What a source lacks: findings that a person has to decide on, and statements for us to run."""
    server = server_findings(ours, settings)
    raise_if_fatal([finding for finding in server if not finding.sql], settings)  # no statement fixes these
    there = all_tables(conn)
    if patterns is not None:
        _refuse_unpublishable(settings, named_tables(there, settings.tag, patterns, exact=True))
        there = named_tables(there, settings.tag, patterns)
    wanted = to_publish(there)
    unpublished = lacking(conn, settings.publications, wanted)
    _refuse_keyless(conn, settings, unpublished, append_only=append_only)
    publication = _publication(conn, settings, None if patterns is None else unpublished)
    hidden, grants = _rights(ours, conn, settings, wanted)
    return [*server, *hidden], [*publication, *grants, *_grants_on_views(conn, settings, computed)]


def _publication(conn: psycopg.Connection, settings: SourceSettings, missing: Sequence[NamedTable] | None) -> list[str]:
    """The statements that add the missing tables to the first publication (None: that publish all present and future
    tables)."""
    known = load_publications(conn, settings.publications)
    name = settings.publications[0]
    if any(publication.all_tables for publication in known.values()):
        missing = ()
    if name not in known:
        # Published through its root, a partitioned table is one table, whatever its partitions are
        target = sql.SQL("FOR ALL TABLES") if missing is None else sql.SQL("FOR TABLE {}").format(listed(missing))
        if missing is not None and not missing:
            target = sql.SQL("")
        create = sql.SQL("CREATE PUBLICATION {} {} WITH (publish_via_partition_root = true)")
        return [" ".join(create.format(sql.Identifier(name), target).as_string(conn).split())]
    if missing is None:
        raise PublishRefusedError(
            f'publication "{name}" exists for some tables only',
            settings.address,
            f"drop it first, DROP PUBLICATION {sql.Identifier(name).as_string(conn)}, or name the tables",
        )
    return [add_statement(conn, name, missing)] if missing else []


def _rights(
    ours: psycopg.Connection,
    conn: psycopg.Connection,
    settings: SourceSettings,
    wanted: Sequence[NamedTable],
) -> tuple[list[Finding], list[str]]:
    """What our role needs to read the tables: findings for a superuser to decide on, and grants."""
    known = load_publications(ours, settings.publications)
    published = published_tables(ours, [name for name in settings.publications if name in known])
    columns = {table.relation.oid: Reading.of(table) for table in published}
    barred = unreadable(ours, [columns.get(each.oid, each) for each in readings(ours, wanted)])
    hidden = [each for findings in barred.values() for each in findings if each.code != "HW_2018"]
    oids = [oid for oid, findings in barred.items() if any(each.code == "HW_2018" for each in findings)]
    rows = conn.execute(
        f"""{TREE}
           select n.nspname, c.relname, has_schema_privilege(%(user)s, n.oid, 'USAGE'),
                  has_table_privilege(%(user)s, c.oid, 'SELECT')
           from (select distinct oid from tree) part
             join pg_class c on c.oid = part.oid join pg_namespace n on n.oid = c.relnamespace
           order by 1, 2""".encode(),
        {"user": settings.user, "oids": oids},
    ).fetchall()
    role = sql.Identifier(settings.user)
    schemas = sorted({schema for schema, _, usage, _ in rows if not usage})
    grants = [sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), role) for schema in schemas]
    closed = [sql.Identifier(schema, name) for schema, name, _, select in rows if not select]
    if closed:
        grants.append(sql.SQL("GRANT SELECT ON {} TO {}").format(sql.SQL(", ").join(closed), role))
    return list(dict.fromkeys(hidden)), [grant.as_string(conn) for grant in grants]


def _refuse_unpublishable(settings: SourceSettings, tables: Sequence[NamedTable]) -> None:
    for table in tables:
        if not table.publishable:
            raise PublishRefusedError(
                f"{table.qualified_name} is {table.form}, which Postgres cannot publish",
                settings.address,
                "name the ordinary tables it is made of in the sync config",
            )


def _refuse_keyless(
    conn: psycopg.Connection, settings: SourceSettings, tables: Sequence[NamedTable], *, append_only: bool
) -> None:
    keyless = [table for table in tables if table.keyless]
    if not keyless or append_only:
        return
    names = ", ".join(table.qualified_name for table in keyless)
    alter = "; ".join(identity_statement(conn, table) for table in keyless)
    raise PublishRefusedError(
        f"published, Postgres would refuse updates and deletes of {names}: nothing identifies their rows",
        settings.address,
        f"add a primary key, or run {alter}; if rows are only ever inserted, pass --append-only",
    )


def _run(conn: psycopg.Connection, settings: SourceSettings, statement: str) -> bool:
    """Run a statement. Returns False when the right is missing."""
    try:
        conn.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege:
        return False
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise connection_error(settings, error) from error
    except psycopg.Error as error:
        reason = error.diag.message_primary or type(error).__name__
        raise PublishRefusedError(f"Postgres refuses {statement}: {reason}", settings.address) from error
    return True
