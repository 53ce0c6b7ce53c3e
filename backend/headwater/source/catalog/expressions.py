"""The text of expressions in the catalog. Only Postgres can produce it, and it needs a lock on the table.

Everything else about a table is read without a lock. So a table that is being altered for hours, or waits for another
lock, delays only itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import errors

_PATIENCE = "300ms"
_ROUNDS = 5
_PAUSE = 0.02


@dataclass(frozen=True, slots=True)
class Expressions:
    """Texts of expressions: `generated` by table and column number, `filters` by table and publication. Tables in
    `locked` have neither."""

    generated: Mapping[tuple[int, int], str] = field(default_factory=dict)
    filters: Mapping[tuple[int, str], str] = field(default_factory=dict)
    locked: frozenset[int] = frozenset()


_GENERATED = """
select d.adrelid::int8, d.adnum::int4, '', pg_get_expr(d.adbin, d.adrelid)
from pg_attrdef d join pg_attribute a on a.attrelid = d.adrelid and a.attnum = d.adnum and a.attgenerated <> ''
where d.adrelid = any(%(oids)s::oid[])
"""

_FILTERS = """
union all
select r.prrelid::int8, 0, p.pubname, pg_get_expr(r.prqual, r.prrelid)
from pg_publication_rel r join pg_publication p on p.oid = r.prpubid and p.pubname = any(%(names)s)
where r.prrelid = any(%(oids)s::oid[]) and r.prqual is not null
"""


def read_expressions(conn: psycopg.Connection, publications: Sequence[str], oids: Collection[int]) -> Expressions:
    """The expressions of these tables. Does not wait for locked tables."""
    asked, locked = set(oids), set[int]()
    query = _GENERATED + (_FILTERS if conn.info.server_version >= 15_00_00 else "")
    for _ in range(_ROUNDS):
        if not asked:
            break
        try:
            with conn.transaction():
                conn.execute(f"set local lock_timeout = '{_PATIENCE}'")
                rows = conn.execute(query.encode(), {"oids": list(asked), "names": list(publications)}).fetchall()
        except errors.LockNotAvailable:
            held = locked_tables(conn, asked)
            asked -= held
            locked |= held
            continue
        generated = {(oid, number): text for oid, number, _, text in rows if number}
        filters = {(oid, name): text for oid, number, name, text in rows if not number}
        return Expressions(generated, filters, frozenset(locked))
    return Expressions(locked=frozenset(oids))


def locked_tables(conn: psycopg.Connection, oids: Collection[int]) -> frozenset[int]:
    """Those of the tables that can't be read, since another session holds or awaits an exclusive lock."""
    rows = conn.execute(
        """select distinct relation::int8 from pg_locks
           where locktype = 'relation' and mode = 'AccessExclusiveLock' and pid is distinct from pg_backend_pid()
             and database = (select oid from pg_database where datname = current_database())
             and relation = any(%s::oid[])""",
        [list(oids)],
    ).fetchall()
    return frozenset(oid for (oid,) in rows)


def locked_throughout(conn: psycopg.Connection, oids: Collection[int], seconds: float) -> frozenset[int]:
    """Those of the tables that are found locked at every look for so many seconds."""
    deadline = time.monotonic() + seconds
    locked = locked_tables(conn, oids) if oids else frozenset()
    while locked and time.monotonic() < deadline:
        time.sleep(_PAUSE)
        locked &= locked_tables(conn, locked)
    return locked
