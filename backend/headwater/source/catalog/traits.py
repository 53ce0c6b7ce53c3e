"""What else a table's content depends on: how it came into its publications, and what the types of its columns are.

A table can leave a publication and come back between two looks, and rows written meanwhile are nowhere in the stream.
So it is not enough that the same is published: it has to be by the same entries of the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import psycopg


class Standing(NamedTuple):
    """The partitioned tables above a table, and the entries of the catalog that have it published."""

    ancestors: frozenset[int]
    entries: tuple[str, ...]


# A table in a schema that is published depends on the schema by an entry that a move there and back makes anew.
_STANDING = """
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


def standing(conn: psycopg.Connection, oids: Sequence[int], publications: Sequence[str]) -> Mapping[int, Standing]:
    """By oid, how each of the tables stands in the publications."""
    query = _STANDING.format(schemas=_BY_SCHEMA if conn.info.server_version >= 15_00_00 else "")
    rows = conn.execute(query.encode(), {"oids": list(oids), "names": list(publications)}).fetchall()
    return {oid: Standing(frozenset(ancestors), tuple(entries)) for oid, ancestors, entries in rows}


# The text of every row changes with the label of an enum value or the attributes of a composite type, without a trace
# in the table itself. A label that was renamed and renamed back leaves its xmin, for rows may have been streamed with
# the other one. An attribute needs none: its values can't be changed in place, and its xmin changes with a default of
# the table whose rows are the type. What comes with Postgres stays.
_DEFINITIONS = """
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
select part.root::int8, md5(string_agg(definition.text, ', ' order by definition.text)),
       md5(string_agg(definition.former, ', ' order by definition.former))
from part
join pg_type t on t.oid = part.oid
cross join lateral (
    select label.text, label.text as former from pg_enum e
    cross join lateral (select format('%%s %%s %%s', e.oid, e.enumlabel, e.xmin) as text) label
    where e.enumtypid = t.oid
    union all
    select format('%%s %%s %%s %%s %%s', t.oid, a.attnum, a.attname, a.atttypid, a.atttypmod),
           format('%%s %%s %%s %%s %%s', t.oid, a.attnum, a.attname, a.atttypid, a.xmin)
    from pg_attribute a
    where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
) definition
group by part.root
"""


class TypeDefinition(NamedTuple):
    """A digest of what enums and composite types are within a type; `former` as earlier versions made it."""

    content: str
    former: str


def type_definitions(conn: psycopg.Connection, oids: Iterable[int]) -> Mapping[int, TypeDefinition]:
    """By oid, what is within these types; none for a type without enums and composite types."""
    rows = conn.execute(_DEFINITIONS, {"oids": sorted(set(oids))}).fetchall()
    return {oid: TypeDefinition(*digests) for oid, *digests in rows}
