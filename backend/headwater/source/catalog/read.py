"""One consistent read of the catalog's rows about published tables. `published` makes tables of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import psycopg
from psycopg.rows import class_row

from headwater.oplog.change import ReplicaIdentity
from headwater.source.catalog.publications import (
    Membership,
    Publication,
    PublicationError,
    load_publications,
    memberships,
)
from headwater.source.catalog.shape import digest_sql


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows: the published table itself, or one partition of it. `pages` counts its 8 kB blocks,
    `estimated_rows` its rows, both as the planner last knew them (0 when it never looked), or as of now from
    `published.measured`. `attached` changes when a partition is detached and attached again."""

    oid: int
    schema: str
    name: str
    relfilenode: int
    pages: int
    estimated_rows: int
    attached: str = ""


TREE = """
with recursive tree (root, oid) as (
    select t, t from unnest(%(oids)s::oid[]) t
    union all
    select tree.root, i.inhrelid from tree join pg_class c on c.oid = tree.oid and c.relkind = 'p'
      join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
), part as (
    select tree.root, tree.oid from tree join pg_class c on c.oid = tree.oid and c.relkind <> 'p'
)
"""
"""SQL: `part` has the partitions of the tables `oids`, each with its root; a table without partitions has itself. The
function of Postgres would wait for a lock on each."""


def load_leaves(conn: psycopg.Connection, oids: Sequence[int]) -> dict[int, tuple[Leaf, ...]]:
    rows = conn.execute(
        f"""{TREE}
           select part.root::int8, leaf.oid::int8, n.nspname, leaf.relname,
                  leaf.relfilenode::int8,
                  leaf.relpages::int8, greatest(leaf.reltuples, 0)::int8,
                  array(with recursive above (parent, entry) as (
                            select i.inhparent, i.inhparent || ' ' || i.xmin from pg_inherits i
                            where i.inhrelid = leaf.oid and leaf.relispartition
                            union all
                            select i.inhparent, i.inhparent || ' ' || i.xmin
                            from above join pg_class c on c.oid = above.parent and c.relispartition
                              join pg_inherits i on i.inhrelid = above.parent)
                        select entry from above order by 1)::text
           from part join pg_class leaf on leaf.oid = part.oid and leaf.relkind = 'r'
             join pg_namespace n on n.oid = leaf.relnamespace
           order by part.root, leaf.oid""".encode(),
        {"oids": list(oids)},
    ).fetchall()
    leaves: dict[int, list[Leaf]] = defaultdict(list)
    for root, *leaf in rows:
        leaves[root].append(Leaf(*leaf))
    return {root: tuple(found) for root, found in leaves.items()}


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of pg_class. `key` has the numbers of the identity's columns, `primary` those of the primary key. `by_leaf`
    and `mixed`: see `Relation` and `PublishedTable`."""

    oid: int
    schema: str
    name: str
    identity: str
    kind: str
    key: list[int]
    primary: list[int]
    by_leaf: bool = False
    mixed: bool = False


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """A row of pg_attribute. `changed_by` is its xmin, `computed` a digest of a generated column's expression, `inputs`
    the numbers of the columns that it uses."""

    table: int
    number: int
    name: str
    type_oid: int
    type_modifier: int
    generated: str
    changed_by: str
    computed: str | None
    inputs: list[int]


@dataclass(frozen=True, slots=True)
class CatalogRead:
    """All rows of one read, without the text of expressions. Unless it is `whole`, tables were created or dropped
    meanwhile."""

    publications: Mapping[str, Publication]
    members: Mapping[int, list[Membership]]
    publishing: Mapping[int, PublishingEntries]
    columns: Mapping[int, list[ColumnRow]]
    leaves: Mapping[int, tuple[Leaf, ...]]
    types: Mapping[int, str]
    found: tuple[TableRow, ...]
    whole: bool

    @property
    def with_expressions(self) -> frozenset[int]:
        """The oids of tables with expressions: a row filter or generated columns."""
        filtered = {t.oid for t in self.found if any(m.filtered is not None for m in self.members[t.oid])}
        generated = {t.oid for t in self.found if any(a.generated for a in self.columns[t.oid])}
        return frozenset(filtered | generated)

    def entries(self, oids: Iterable[int]) -> set[tuple[int, int, str]]:
        """The versions of the tables' column rows. They change when a column is renamed, even there and back."""
        return {(a.table, a.number, a.changed_by) for oid in oids for a in self.columns[oid]}


def column_entries(conn: psycopg.Connection, oids: Iterable[int]) -> set[tuple[int, int, str]]:
    """See `CatalogRead.entries`: as they are now."""
    return set(
        conn.execute(
            """select attrelid::int8, attnum::int4, xmin::text from pg_attribute
               where attrelid = any(%s::oid[]) and attnum > 0 and not attisdropped""",
            [list(oids)],
        ).fetchall()
    )


def read_catalog(conn: psycopg.Connection, publications: Sequence[str], only: int | None) -> CatalogRead:
    """Read what the publications publish, or `only` the table with this oid. Raises PublicationError when a
    publication is missing."""
    known = load_publications(conn, publications)
    for name in publications:
        if name not in known:
            raise PublicationError(
                f'publication "{name}" does not exist', conn.info.dbname, "run `headwater source prepare`"
            )
    members = memberships(conn, publications)
    sought = [oid for oid in members if only in {None, oid}]
    publishing = publishing_entries(conn, sought, publications)
    oids = [oid for oid in sought if not members.keys() & publishing[oid].ancestors]  # else its root is published
    columns = _columns(conn, oids)
    leaves = load_leaves(conn, oids)
    identities = leaf_identities(conn, oids)
    found = tuple(_identified(info, columns[info.oid], identities.get(info.oid, ())) for info in _tables(conn, oids))
    return CatalogRead(
        known,
        members,
        publishing,
        columns,
        leaves,
        type_definitions(conn, {column.type_oid for each in columns.values() for column in each}),
        found,
        whole={table.oid for table in found} == set(oids),
    )


def _tables(conn: psycopg.Connection, oids: list[int]) -> list[TableRow]:
    # With an index that Postgres does not accept as an identity, the table has none
    with conn.cursor(row_factory=class_row(TableRow)) as cursor:
        cursor.execute(
            f"""select c.oid::int8 as oid, n.nspname as schema, c.relname as name, c.relreplident::text as identity,
                      c.relkind::text as kind,
                      coalesce((select (i.indkey::int2[])[0:i.indnkeyatts - 1]::int4[] from pg_index i
                                where {identifies("c")}), '{{}}') as key,
                      coalesce((select (i.indkey::int2[])[0:i.indnkeyatts - 1]::int4[] from pg_index i
                                where i.indrelid = c.oid and {USABLE} and i.indisprimary), '{{}}') as primary
               from pg_class c join pg_namespace n on n.oid = c.relnamespace
               where c.oid = any(%s::oid[])""",
            [oids],
        )
        return cursor.fetchall()


def _identified(table: TableRow, attributes: list[ColumnRow], leaves: Sequence[Identity]) -> TableRow:
    """The table with the identity that holds for the rows of all its partitions."""
    if not leaves:
        return table
    names = {a.number: a.name for a in attributes}
    own = Identity(ReplicaIdentity(table.identity), frozenset(names[number] for number in table.key))
    found = common_identity(own, frozenset(names[number] for number in table.primary), leaves)
    if found == own:
        return table
    identity = found or NO_IDENTITY
    key = [number for number, name in names.items() if name in identity.key]
    return replace(table, identity=identity.kind.value, key=key, by_leaf=True, mixed=found is None)


def _columns(conn: psycopg.Connection, oids: list[int]) -> Mapping[int, list[ColumnRow]]:
    # xmin changes when a type changes in place (ALTER … USING), which leaves name and type as they were; see `shape`
    with conn.cursor(row_factory=class_row(ColumnRow)) as cursor:
        cursor.execute(
            f"""select a.attrelid::int8 as table, a.attnum::int4 as number, a.attname as name,
                      a.atttypid::int8 as type_oid, a.atttypmod as type_modifier, a.attgenerated::text as generated,
                      a.xmin::text as changed_by, {digest_sql("d.adbin::text")} as computed,
                      case when d.oid is null then '{{}}'::int4[] else array(
                          select refobjsubid from pg_depend
                          where refclassid = 'pg_class'::regclass and refobjid = a.attrelid
                            and refobjsubid not in (0, a.attnum)
                            and (classid = 'pg_attrdef'::regclass and objid = d.oid  -- the second form until 14
                                 or classid = 'pg_class'::regclass and objid = a.attrelid and objsubid = a.attnum)
                          order by refobjsubid) end as inputs
               from pg_attribute a
                 left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum and a.attgenerated <> ''
               where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
               order by a.attrelid, a.attnum""".encode(),
            [oids],
        )
        columns: dict[int, list[ColumnRow]] = defaultdict(list)
        for row in cursor:
            columns[row.table].append(row)
        return columns


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


USABLE = "i.indisvalid and i.indisunique and i.indimmediate and i.indpred is null"
"""What Postgres demands of an index `i` that identifies rows, besides columns that are not null."""


def identifies(table: str) -> str:
    """SQL: whether index `i` is the replica identity of `table`, a row of pg_class."""
    return (
        f"i.indrelid = {table}.oid and {USABLE} and case {table}.relreplident"
        " when 'd' then i.indisprimary when 'i' then i.indisreplident else false end"
    )


class Identity(NamedTuple):
    """A replica identity, and the names of its columns: those of its index, else none."""

    kind: ReplicaIdentity
    key: frozenset[str]


NO_IDENTITY = Identity(ReplicaIdentity.NOTHING, frozenset())

_LEAVES = f"""{TREE}
select distinct part.root::int8, leaf.relreplident::text, coalesce((
    select array(select a.attname::text from pg_attribute a
                 where a.attrelid = leaf.oid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) order by 1)
    from pg_index i where {identifies("leaf")}), '{{}}')
from part join pg_class top on top.oid = part.root and top.relkind = 'p'
  join pg_class leaf on leaf.oid = part.oid and leaf.relkind = 'r'
"""


def leaf_identities(conn: psycopg.Connection, oids: Sequence[int]) -> Mapping[int, Sequence[Identity]]:
    """By oid of each partitioned table, the different identities of its partitions."""
    found: dict[int, list[Identity]] = defaultdict(list)
    for root, kind, key in conn.execute(_LEAVES.encode(), {"oids": list(oids)}):
        identity = Identity(ReplicaIdentity(kind), frozenset(key))
        keyless = identity.kind is not ReplicaIdentity.FULL and not key
        found[root].append(NO_IDENTITY if keyless else identity)
    return found


def common_identity(own: Identity, primary: frozenset[str], leaves: Iterable[Identity]) -> Identity | None:
    """The identity that holds for all rows of a partitioned table: its own key, or its primary key, if every old row
    that is streamed has these columns. None where the partitions have nothing in common."""
    identities = set(leaves)
    key = own.key or primary
    whole = {leaf for leaf in identities if leaf.kind is ReplicaIdentity.FULL}
    if not identities:
        return own
    if identities == {NO_IDENTITY}:  # no updates or deletes come
        return NO_IDENTITY if own.key or own.kind is ReplicaIdentity.FULL else own
    if identities <= whole | {NO_IDENTITY} and not own.key:
        return Identity(ReplicaIdentity.FULL, frozenset())
    if key and all(leaf in whole or leaf == NO_IDENTITY or key <= leaf.key for leaf in identities):
        return own if own.key else Identity(ReplicaIdentity.DEFAULT, key)
    return None
