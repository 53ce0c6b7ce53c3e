"""Catalog entries that also belong to a table's shape: those that publish it, and the definitions of its types.

A table can be removed from a publication and added again between two looks, and rows written meanwhile are not in the
stream. So the same table has to be published by the same catalog entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import psycopg

from headwater.source.catalog.shape import digest_sql


class PublishingEntries(NamedTuple):
    """The oids of the partitioned tables above a table, and the catalog entries that publish it."""

    ancestors: frozenset[int]
    entries: tuple[str, ...]


# The dependency of a table on its schema is a new entry after the table was moved to another schema and back.
_ENTRIES = """
with recursive path (oid, relid) as (
    select t, t from unnest(%(oids)s::oid[]) t
    union
    select path.oid, i.inhparent from path join pg_class c on c.oid = path.relid and c.relispartition
      join pg_inherits i on i.inhrelid = path.relid and not i.inhdetachpending
), publication as (
    select oid from pg_publication where pubname = any(%(names)s)
), entry as (
    select path.oid, 'table ' || r.oid as found
    from path join pg_publication_rel r on r.prrelid = path.relid join publication p on p.oid = r.prpubid
    {schemas}
)
select t.oid::int8,
       array(select path.relid::int8 from path where path.oid = t.oid and path.relid <> t.oid),
       array(select entry.found from entry where entry.oid = t.oid order by 1)
from unnest(%(oids)s::oid[]) as t(oid)
"""

_BY_SCHEMA = """
    union all
    select path.oid, 'schema ' || s.oid || ' ' || d.xmin
    from path join pg_class c on c.oid = path.relid
      join pg_publication_namespace s on s.pnnspid = c.relnamespace join publication p on p.oid = s.pnpubid
      join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = c.oid and d.objsubid = 0
        and d.refclassid = 'pg_namespace'::regclass and d.refobjid = c.relnamespace
"""


def publishing_entries(
    conn: psycopg.Connection, oids: Sequence[int], publications: Sequence[str]
) -> Mapping[int, PublishingEntries]:
    """The entries of each table, by oid."""
    query = _ENTRIES.format(schemas=_BY_SCHEMA if conn.info.server_version >= 15_00_00 else "")
    rows = conn.execute(query.encode(), {"oids": list(oids), "names": list(publications)}).fetchall()
    return {oid: PublishingEntries(frozenset(ancestors), tuple(entries)) for oid, ancestors, entries in rows}


# Renaming an enum label, or altering a composite type, changes the text of rows, but no catalog row of the table. The
# xmin of a label counts, since it may have been renamed and renamed back, and rows streamed in between. That of an
# attribute does not: its values can't be changed in place, and its xmin changes with a column default of the table
# whose row type it is. Built-in types (oids below 16384) never change.
_DEFINITIONS = f"""
with recursive part (root, oid) as (
    select t, t from unnest(%(oids)s::oid[]) t where t >= 16384
    union
    select part.root, inside.oid
    from part join pg_type t on t.oid = part.oid
    cross join lateral (
        select t.typelem as oid
        union all
        select t.typbasetype
        union all
        select a.atttypid from pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
        union all
        select r.rngsubtype from pg_range r where r.rngtypid = t.oid
        union all
        select r.rngtypid from pg_range r where r.rngmultitypid = t.oid
    ) inside
    where inside.oid >= 16384
)
select part.root::int8, {digest_sql("string_agg(definition.text, ', ' order by definition.text)")}
from part
join pg_type t on t.oid = part.oid
cross join lateral (
    -- names are quoted, since a name may be chosen so as to look like the text of several
    select format('%%s %%L %%s', e.oid, e.enumlabel, e.xmin) as text from pg_enum e where e.enumtypid = t.oid
    union all
    select format('%%s %%s %%L %%s %%s', t.oid, a.attnum, a.attname, a.atttypid, a.atttypmod) from pg_attribute a
    where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
) definition
group by part.root
"""


def type_definitions(conn: psycopg.Connection, oids: Iterable[int]) -> Mapping[int, str]:
    """By oid, a digest of the enums and composite types within these types. Types without any are left out."""
    return dict(conn.execute(_DEFINITIONS.encode(), {"oids": sorted(set(oids))}).fetchall())
