"""Makes a source ready: the publication, its tables, and the rights to read them, as far as our own rights go.

Everything is safe to repeat: what is there already is left alone, and nothing is ever taken away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from headwater.errors import HeadwaterError, Kind
from headwater.source.catalog import load_publications, published_tables
from headwater.source.checks import Finding, check_source, raise_if_fatal, server_findings
from headwater.source.connect import SourceSettings, connect
from headwater_rules.plan import TablePattern


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `prepare` did, each as the SQL that it ran; what it left for somebody to look at; and what is published."""

    done: tuple[str, ...]
    warnings: tuple[Finding, ...]
    tables: tuple[str, ...]


class NotAllowed(HeadwaterError):
    """Our rights do not reach; the fix is the SQL that somebody else has to run."""

    kind: ClassVar[Kind] = Kind.STOP
    code: ClassVar[str] = "HW_2004"


@dataclass(frozen=True, slots=True)
class _Table:
    """A table of the source. `kind` as in pg_class; `keyless` when nothing identifies its rows and nobody asked for
    that."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    partition: bool
    keyless: bool

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"


def prepare(
    settings: SourceSettings,
    tables: Sequence[TablePattern] | None,
    *,
    admin: SourceSettings | None = None,
    append_only: bool = False,
) -> Prepared:
    """Publish the tables that match (None: every table, which needs a superuser) and grant the right to read them.

    The SQL runs as `admin`, or else as the role of `settings`, which must then own the tables. A table without a key
    is published only with `append_only`, because Postgres refuses updates and deletes of it from then on.

    Raises SourceNotReady when settings, rights or slots do not allow replication, NotAllowed with the SQL for somebody
    with more rights, and SourceUnreachable or SourceRefused.
    """
    with connect(settings) as ours, connect(admin or settings, patient=True) as conn:
        raise_if_fatal(server_findings(ours, settings), settings)
        work = _Work(conn, settings)
        work.publish(None if tables is None else _matching(conn, settings, tables), append_only=append_only)
        work.grant()
        warnings = check_source(ours, settings, tables)
        published = published_tables(ours, settings.publications)
        warnings += _unpublished(settings, tables or (), [(t.relation.schema, t.relation.name) for t in published])
    names = tuple(table.qualified_name for table in published)
    return Prepared(tuple(work.done), tuple(warnings), names)


class _Work:
    """The statements of one run, executed as they are found to be needed."""

    def __init__(self, conn: psycopg.Connection, settings: SourceSettings) -> None:
        self._conn = conn
        self._settings = settings
        self.done: list[str] = []

    def publish(self, tables: list[_Table] | None, *, append_only: bool) -> None:
        """Have every table in one of the publications; new ones go into the first."""
        known = load_publications(self._conn, self._settings.publications)
        if any(publication.all_tables for publication in known.values()):
            tables = []
        present = _members(self._conn, list(known))
        missing = None if tables is None else [t for t in tables if t.oid not in present]
        self._refuse_keyless(_all_tables(self._conn) if missing is None else missing, append_only=append_only)
        name = self._settings.publications[0]
        if name not in known:
            self._create(name, missing)
        elif missing is None:
            raise NotAllowed(
                f'publication "{name}" exists for some tables only',
                self._settings.address,
                f"drop it first, DROP PUBLICATION {sql.Identifier(name).as_string(self._conn)}, or name the tables",
            )
        elif missing:
            self._run(
                sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(sql.Identifier(name), _listed(missing)),
            )

    def grant(self) -> None:
        """Let the role of the settings read what is published, where we are somebody who may say so."""
        user = self._settings.user
        role = sql.Identifier(user)
        rows = self._conn.execute(
            """select n.nspname, c.relname, has_schema_privilege(%(user)s, n.oid, 'USAGE'),
                      has_table_privilege(%(user)s, c.oid, 'SELECT')
               from pg_publication_tables p join pg_namespace n on n.nspname = p.schemaname
                 join pg_class top on top.relname = p.tablename and top.relnamespace = n.oid
                 join lateral (select top.oid as relid union select relid from pg_partition_tree(top.oid)) part on true
                 join pg_class c on c.oid = part.relid
               where p.pubname = any(%(names)s) order by 1, 2""",
            {"user": user, "names": list(self._settings.publications)},
        ).fetchall()
        if user == self._conn.info.user:
            return  # nobody can grant to themselves; what is missing is found and named afterwards
        for schema in sorted({schema for schema, _, usage, _ in rows if not usage}):
            self._run(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), role))
        unreadable = [sql.Identifier(schema, name) for schema, name, _, select in rows if not select]
        if unreadable:
            self._run(sql.SQL("GRANT SELECT ON {} TO {}").format(sql.SQL(", ").join(unreadable), role))

    def _create(self, name: str, tables: list[_Table] | None) -> None:
        # Through the root a partitioned table is one table, whatever its partitions are today.
        target = sql.SQL("FOR ALL TABLES") if tables is None else sql.SQL("FOR TABLE {}").format(_listed(tables))
        if tables is not None and not tables:
            target = sql.SQL("")
        self._run(
            sql.SQL("CREATE PUBLICATION {} {} WITH (publish_via_partition_root = true)").format(
                sql.Identifier(name), target
            )
        )

    def _refuse_keyless(self, tables: list[_Table], *, append_only: bool) -> None:
        keyless = [table for table in tables if table.keyless]
        if not keyless or append_only:
            return
        names = ", ".join(table.qualified_name for table in keyless)
        alter = sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(keyless[0].identifier).as_string(self._conn)
        raise NotAllowed(
            f"published, Postgres would refuse updates and deletes of {names}: nothing identifies their rows",
            self._settings.address,
            f"add a primary key, or run {alter}; if rows are only ever inserted, pass --append-only",
        )

    def _run(self, statement: sql.Composed) -> None:
        text = " ".join(statement.as_string(self._conn).split())
        try:
            self._conn.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise NotAllowed(
                f'role "{self._conn.info.user}" may not run a statement that is needed: {error.diag.message_primary}',
                self._settings.address,
                f"have somebody with the right run {text}, or pass --admin-uri",
            ) from error
        except psycopg.Error as error:
            reason = error.diag.message_primary or type(error).__name__
            raise NotAllowed(f"Postgres refuses {text}: {reason}", self._settings.address) from error
        self.done.append(text)


_TABLES = """
select c.oid::int8 as oid, n.nspname as schema, c.relname as name, c.relkind::text as kind,
       c.relpersistence::text as persistence, c.relispartition as partition,
       c.relreplident <> 'n' and c.relreplident <> 'f' and not exists (
         select from pg_index i where i.indrelid = c.oid and i.indisvalid and i.indimmediate
           and case c.relreplident when 'd' then i.indisprimary else i.indisreplident end) as keyless
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p', 'v', 'm', 'f') and n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
order by n.nspname, c.relname
"""


def _all_tables(conn: psycopg.Connection) -> list[_Table]:
    with conn.cursor(row_factory=class_row(_Table)) as cursor:
        return [t for t in cursor.execute(_TABLES).fetchall() if t.kind in "rp" and t.persistence == "p"]


def _matching(conn: psycopg.Connection, settings: SourceSettings, patterns: Sequence[TablePattern]) -> list[_Table]:
    """The tables that the patterns name. A partition stands back where its root is named too."""
    with conn.cursor(row_factory=class_row(_Table)) as cursor:
        found = cursor.execute(_TABLES).fetchall()
    wanted = [t for t in found if any(p.matches(settings.tag, t.schema, t.name) for p in patterns)]
    for table in wanted:
        exact = any(p.exact and p.matches(settings.tag, table.schema, table.name) for p in patterns)
        if exact and (table.kind not in "rp" or table.persistence != "p"):
            raise NotAllowed(
                f"{table.qualified_name} is {_KINDS.get(table.kind, 'an unlogged table')}, which Postgres cannot"
                " publish",
                settings.address,
                "name the ordinary tables it is made of in the sync config",
            )
    usable = [t for t in wanted if t.kind in "rp" and t.persistence == "p"]
    roots = {table.oid for table in usable if table.kind == "p"}
    return [table for table in usable if not (table.partition and _root_of(conn, table) & roots)]


_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


def _root_of(conn: psycopg.Connection, table: _Table) -> set[int]:
    rows = conn.execute(
        "select relid::oid::int8 from pg_partition_ancestors(%s::oid::regclass)", [table.oid]
    ).fetchall()
    return {oid for (oid,) in rows} - {table.oid}


def _members(conn: psycopg.Connection, publications: list[str]) -> set[int]:
    rows = conn.execute(
        """select r.prrelid::int8 from pg_publication_rel r join pg_publication p on p.oid = r.prpubid
           where p.pubname = any(%(names)s)
           union
           select c.oid::int8 from pg_publication_tables t join pg_namespace n on n.nspname = t.schemaname
             join pg_class c on c.relname = t.tablename and c.relnamespace = n.oid
           where t.pubname = any(%(names)s)""",
        {"names": publications},
    ).fetchall()
    return {oid for (oid,) in rows}


def _listed(tables: list[_Table]) -> sql.Composed:
    # ONLY: children by inheritance are tables of their own, published when the sync config names them
    names = [sql.SQL("{}" if table.kind == "p" else "ONLY {}").format(table.identifier) for table in tables]
    return sql.SQL(", ").join(names)


def _unpublished(
    settings: SourceSettings, patterns: Sequence[TablePattern], published: list[tuple[str, str]]
) -> list[Finding]:
    return [
        Finding(
            "HW_2019",
            f"no table matches {pattern.schema}.{pattern.name}, which the sync config names",
            "create it, or correct the name in the sync config",
            fatal=False,
        )
        for pattern in patterns
        if pattern.tag == settings.tag and not any(pattern.matches(settings.tag, *name) for name in published)
    ]
