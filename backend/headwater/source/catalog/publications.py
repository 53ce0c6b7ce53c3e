"""The publications of a source, and the tables in them.

Read only from the catalog's tables. The functions of Postgres show the present, not the transaction's snapshot, and
wait for a lock on every table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psycopg
from psycopg.rows import class_row

from headwater.errors import HeadwaterError
from headwater.source.catalog.shape import digest_sql


class Publication(NamedTuple):
    """One row of pg_publication. `made` changes when the publication is altered or created again."""

    name: str
    all_tables: bool
    operations: tuple[str, ...]
    generated: bool
    made: str


class PublicationError(HeadwaterError):
    """The publications are missing, or contradict each other on a table."""

    code = "PSYNC_S1141"


OPERATIONS = ("insert", "update", "delete", "truncate")


def load_publications(conn: psycopg.Connection, names: Sequence[str]) -> dict[str, Publication]:
    """By name, those of the publications that exist."""
    generated = "pubgencols::text = 's'" if conn.info.server_version >= 18_00_00 else "false"
    rows = conn.execute(
        f"""select pubname, puballtables, {generated},
                   array_remove(array[case when pubinsert then 'insert' end, case when pubupdate then 'update' end,
                     case when pubdelete then 'delete' end, case when pubtruncate then 'truncate' end], null),
                   oid || ' ' || xmin
            from pg_publication where pubname = any(%s)""",
        [list(names)],
    ).fetchall()
    return {name: Publication(name, every, tuple(ops), gen, made) for name, every, gen, ops, made in rows}


@dataclass(frozen=True, slots=True)
class Membership:
    """One table in one publication. `columns` None means all that are published by default; `filtered` is a digest of
    the row filter, None for all rows."""

    oid: int
    publication: str
    columns: list[int] | None
    filtered: str | None


_PUBLISHABLE = "c.relkind in ('r', 'p') and c.relpersistence = 'p' and c.oid >= 16384"

# Tables are listed, or are in a listed schema. A partitioned table stands for its leaves, unless it is published as one
# table. A table in a listed schema has no column list and no filter.
_MEMBERS = f"""
with recursive publication as (
    select oid, pubname, puballtables, pubviaroot from pg_publication where pubname = any(%(names)s)
), listed (pub, via_root, oid) as (
    select p.oid, p.pubviaroot, r.prrelid from publication p join pg_publication_rel r on r.prpubid = p.oid
    where not p.puballtables
    {{schemas}}
), tree (pub, via_root, oid) as (
    select * from listed
    union
    select tree.pub, false, i.inhrelid
    from tree join pg_class c on c.oid = tree.oid and c.relkind = 'p'
      join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
    where not tree.via_root
), member (pub, oid) as (
    select tree.pub, tree.oid from tree join pg_class c on c.oid = tree.oid and (tree.via_root or c.relkind <> 'p')
    union all
    select p.oid, c.oid from publication p join pg_class c on {_PUBLISHABLE}
      and case when p.pubviaroot then not c.relispartition else c.relkind = 'r' end
    where p.puballtables
)
select member.oid::int8 as oid, p.pubname as publication, {{details}}
from member join publication p on p.oid = member.pub {{entry}}
order by p.pubname
"""

_SCHEMAS = f"""
    union
    select p.oid, p.pubviaroot, c.oid
    from publication p join pg_publication_namespace s on s.pnpubid = p.oid
      join pg_class c on c.relnamespace = s.pnnspid and {_PUBLISHABLE}
    where not p.puballtables
"""

_ENTRY = """
  left join pg_publication_rel r on r.prpubid = p.oid and r.prrelid = member.oid and not p.puballtables
    and not exists (select from pg_publication_namespace s join pg_class c on c.relnamespace = s.pnnspid
                    where s.pnpubid = p.oid and c.oid = member.oid)
"""

# Later versions may have more, such as excepted tables, so their own function is used.
_TOLD = f"""
select published.relid::int8 as oid, p.pubname as publication, published.attrs::int2[]::int4[] as columns,
       {digest_sql("published.qual::text")} as filtered
from pg_publication p, lateral pg_get_publication_tables(p.pubname) published
where p.pubname = any(%(names)s) order by p.pubname
"""

_KNOWN = 18
"""The newest major version of Postgres whose catalog `_MEMBERS` covers."""


def memberships(conn: psycopg.Connection, publications: Sequence[str]) -> dict[int, list[Membership]]:
    """By oid, the publications of each table. A partition may be included besides its root."""
    members: dict[int, list[Membership]] = defaultdict(list)
    with conn.cursor(row_factory=class_row(Membership)) as cursor:
        cursor.execute(_members_query(conn.info.server_version // 10_000).encode(), {"names": list(publications)})
        for row in cursor:
            members[row.oid].append(row)
    return members


def _members_query(major: int) -> str:
    if major > _KNOWN:
        return _TOLD
    if major < 15:  # there were no schemas, column lists and filters yet
        return _MEMBERS.format(schemas="", details="null::int4[] as columns, null::text as filtered", entry="")
    details = f"r.prattrs::int2[]::int4[] as columns, {digest_sql('r.prqual::text')} as filtered"
    return _MEMBERS.format(schemas=_SCHEMAS, details=details, entry=_ENTRY)
