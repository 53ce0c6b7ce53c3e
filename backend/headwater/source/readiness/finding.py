"""Findings: problems of a source, with their remedies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from headwater.source.catalog.published import PublishedTable
from headwater.source.catalog.read import Leaf


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong and how to fix it. A fatal finding keeps rows from devices, or writes of devices from the source.
    `sql` has the statements that fix it, if any do, to be copied. `since` is when what it names began, in seconds since
    1970, where that matters. `about` is what it is about, where `what` changes while it lasts."""

    code: str
    what: str
    fix: str
    fatal: bool = True
    sql: tuple[str, ...] = ()
    since: float | None = None
    about: str = ""

    def __str__(self) -> str:
        return f"[{self.code}] {self.lasting}; {self.fix}"

    @property
    def key(self) -> tuple[object, ...]:
        """What stays the same of a finding. What is told of something that lasts changes, such as a session's last
        statement."""
        return self.code, self.fatal, self.about or self.what

    @property
    def lasting(self) -> str:
        """What is wrong, and how old that is by now."""
        return self.what if self.since is None else f"{self.what}, {span(time.time() - self.since)} old"

    @classmethod
    def lacking(cls, code: str, what: str, statement: str, how: str = "") -> Finding:
        """A fatal finding that one statement fixes; `how` says how to run it."""
        return cls(code, what, f"run {statement}{how}", sql=(statement,))


NAMED = 10
"""How many tables one line names."""


def shortened(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def span(seconds: float) -> str:
    """A time for people, in the largest unit that it has at least two of: 90 s, 12 min, 3 h, 5 days."""
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


@dataclass(frozen=True, slots=True)
class Reading:
    """What has to be readable of a table: these columns (None: all) of each of its leaves."""

    oid: int
    name: str
    leaves: tuple[Leaf, ...]
    columns: tuple[str, ...] | None = None

    @classmethod
    def of(cls, table: PublishedTable) -> Reading:
        columns = tuple(column.name for column in table.relation.columns)
        return cls(table.relation.oid, table.qualified_name, table.leaves, columns)


def unreadable(conn: psycopg.Connection, tables: Sequence[Reading]) -> dict[int, tuple[Finding, ...]]:
    """By oid, the tables that we can't read, and the findings that say what each lacks."""
    if not tables:
        return {}
    rights = _rights(conn, [leaf.oid for table in tables for leaf in table.leaves])
    found: dict[int, tuple[Finding, ...]] = {}
    for table in tables:
        known = [(leaf, *rights[leaf.oid]) for leaf in table.leaves if leaf.oid in rights]
        closed = dict.fromkeys(leaf.schema for leaf, usage, _, _ in known if not usage)
        refused = [leaf for leaf, _, select, _ in known if not select and not _may_select(conn, leaf, table.columns)]
        lacking = [_no_usage(conn, schema) for schema in closed]
        if refused:
            lacking.append(_no_select(conn, refused))
        if any(hidden for *_, hidden in known):
            lacking.append(_hidden(conn, table))
        if lacking:
            found[table.oid] = tuple(lacking)
    return found


def _rights(conn: psycopg.Connection, oids: list[int]) -> dict[int, tuple[bool, bool, bool]]:
    """By oid: USAGE of the schema, SELECT, and whether row-level security applies."""
    rows = conn.execute(
        """select c.oid::int8, has_schema_privilege(n.oid, 'USAGE'),
                  has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid)
           from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = any(%s::oid[])""",
        [oids],
    ).fetchall()
    return {oid: (usage, select, hidden) for oid, usage, select, hidden in rows}


def _may_select(conn: psycopg.Connection, leaf: Leaf, columns: tuple[str, ...] | None) -> bool:
    row = conn.execute(
        """select coalesce(bool_and(has_column_privilege(attrelid, attnum, 'SELECT')), false) from pg_attribute
           where attrelid = %s and attnum > 0 and not attisdropped and (%s::text[] is null or attname = any(%s))""",
        [leaf.oid, None if columns is None else list(columns), list(columns or ())],
    ).fetchone()
    return row is not None and bool(row[0])


def _no_usage(conn: psycopg.Connection, schema: str) -> Finding:
    grant = sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), sql.Identifier(conn.info.user))
    return Finding.lacking("HW_2018", f'role "{conn.info.user}" may not use schema {schema}', grant.as_string(conn))


def _no_select(conn: psycopg.Connection, leaves: Sequence[Leaf]) -> Finding:
    tables = sql.SQL(", ").join(sql.Identifier(leaf.schema, leaf.name) for leaf in leaves)
    grant = sql.SQL("GRANT SELECT ON {} TO {}").format(tables, sql.Identifier(conn.info.user))
    names = ", ".join(f"{leaf.schema}.{leaf.name}" for leaf in leaves)
    return Finding.lacking("HW_2018", f'role "{conn.info.user}" may not read {names}', grant.as_string(conn))


def _hidden(conn: psycopg.Connection, table: Reading) -> Finding:
    alter = sql.SQL("ALTER ROLE {} BYPASSRLS").format(sql.Identifier(conn.info.user)).as_string(conn)
    what = f"row-level security hides rows of {table.name} from us"
    return Finding.lacking("PSYNC_S1145", what, alter, " as a superuser")
