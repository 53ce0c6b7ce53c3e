"""What the source's catalog says about published tables, in the form in which the stream describes them.

Everything a table's content depends on, apart from its rows, goes into its shape, which a store keeps beside the rows:
it says whether they can be followed on by the stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import psycopg
from psycopg.rows import class_row

from headwater.decode.catalog import TYPE_QUERY, TypeCatalog
from headwater.errors import HeadwaterError, Kind
from headwater.oplog.change import Column, Generated, Relation, ReplicaIdentity
from headwater.source.identity import NO_IDENTITY, USABLE, Identity, identifies, leaf_identities, told_apart
from headwater.source.shape import LeafShape, Shape, attached, digest, followed_on
from headwater.source.traits import Standing, TypeDefinition, standing, type_definitions


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows: the published table itself, or one partition of it. `pages` counts its 8 kB blocks,
    `estimated_rows` its rows, both as the planner last knew them (0 when it never looked), or as of now where
    `sizes.measured` was asked. `attached` changes when a partition is detached and attached again."""

    oid: int
    schema: str
    name: str
    relfilenode: int
    pages: int
    estimated_rows: int
    attached: str = ""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as the publications give it to us.

    `relation` equals the stream's Relation message but for stored generated columns, which it has even where the
    stream does not, and for an identity that the partitions decide. `row_filter` is an SQL condition over the table's
    columns in parentheses, None for all rows. `shape` is the text of a `Shape`; `fingerprint` stays the same as long as
    what is read by parts belongs together. `publications` are those that publish it, `unseen` the kinds of change that
    can pass them by; updates and deletes are among these where `mixed` says that the partitions tell rows apart in ways
    that have nothing in common. `left_out` names generated columns that nobody here can compute, since what they are
    computed from is not published; `unsent_key` those that identify a row, and are not streamed. `former` is what
    earlier versions had for a shape: any difference in it was one of the table.
    """

    relation: Relation
    leaves: tuple[Leaf, ...]
    row_filter: str | None
    shape: str
    fingerprint: str
    publications: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unsent_key: tuple[str, ...] = ()
    mixed: bool = False
    former: str = ""

    def followed_on(self, shape: str) -> bool:
        """Whether rows that were stored under that shape, of whatever version, can be followed by the stream."""
        return shape == self.former or followed_on(shape, self.shape)

    def attached_since(self, shape: str) -> frozenset[int]:
        """The oids of the leaves that came since rows were stored under that shape, if nothing else is different."""
        return attached(shape, self.shape)

    @property
    def qualified_name(self) -> str:
        return f"{self.relation.schema}.{self.relation.name}"

    @property
    def estimated_rows(self) -> int:
        return sum(leaf.estimated_rows for leaf in self.leaves)


class PublicationUnusable(HeadwaterError):
    """The publications are missing, or contradict each other on a table."""

    kind: ClassVar[Kind] = Kind.STOP
    code: ClassVar[str] = "PSYNC_S1141"


class KeyNotSentError(HeadwaterError):
    """Rows of a table are told apart by what the stream does not say."""

    kind: ClassVar[Kind] = Kind.STOP
    code: ClassVar[str] = "HW_2026"


def unsent_key_error(table: PublishedTable) -> KeyNotSentError:
    """For a table with an `unsent_key`."""
    return KeyNotSentError(
        f"generated columns identify a row, and Postgres does not stream them: {', '.join(table.unsent_key)}",
        table.qualified_name,
        f"run ALTER TABLE {table.qualified_name} REPLICA IDENTITY FULL, or USING INDEX one of ordinary columns",
    )


class Publication(NamedTuple):
    """One row of pg_publication, with what it publishes. `made` is another when it was altered or made again."""

    name: str
    all_tables: bool
    via_root: bool
    operations: tuple[str, ...]
    generated: bool
    made: str


_OPERATIONS = ("insert", "update", "delete", "truncate")


def load_publications(conn: psycopg.Connection, names: Sequence[str]) -> dict[str, Publication]:
    """Those of the named publications that exist."""
    generated = "pubgencols::text = 's'" if conn.info.server_version >= 18_00_00 else "false"
    rows = conn.execute(
        f"""select pubname, puballtables, pubviaroot, {generated},
                   array_remove(array[case when pubinsert then 'insert' end, case when pubupdate then 'update' end,
                     case when pubdelete then 'delete' end, case when pubtruncate then 'truncate' end], null),
                   oid || ' ' || xmin
            from pg_publication where pubname = any(%s)""",
        [list(names)],
    ).fetchall()
    return {name: Publication(name, every, root, tuple(ops), gen, made) for name, every, root, gen, ops, made in rows}


def published_tables(
    conn: psycopg.Connection, publications: Sequence[str], only: int | None = None
) -> list[PublishedTable]:
    """Every table the publications publish, or `only` the one with this oid, ordered by schema and name, read in one
    consistent look at the catalog.

    Raises PublicationUnusable when a publication is missing or two of them want different columns of one table.
    """
    if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE or not conn.autocommit:
        return _published_tables(conn, publications, only)[0]
    while True:  # as long as tables are made while we look
        with conn.transaction():
            conn.execute("set transaction isolation level repeatable read read only")
            tables, whole = _published_tables(conn, publications, only)
        if whole:
            return tables


def load_types(conn: psycopg.Connection, oids: Iterable[int]) -> TypeCatalog:
    """Descriptions of these types and of every type they are made of."""
    return TypeCatalog.from_rows(conn.execute(TYPE_QUERY, {"oids": sorted(set(oids))}).fetchall())


def _published_tables(
    conn: psycopg.Connection, publications: Sequence[str], only: int | None
) -> tuple[list[PublishedTable], bool]:
    """The tables, and whether all that are published were seen: what a publication has, Postgres tells as of now,
    whatever the transaction's snapshot shows of the rest."""
    known = load_publications(conn, publications)
    for name in publications:
        if name not in known:
            raise PublicationUnusable(
                f'publication "{name}" does not exist', conn.info.dbname, "run `headwater source prepare`"
            )
    members = _memberships(conn, publications)
    sought = [oid for oid in members if only in {None, oid}]
    stands = standing(conn, sought, publications)
    oids = [oid for oid in sought if not members.keys() & stands[oid].ancestors]  # else the root stands for it
    columns = _columns(conn, oids)
    leaves = load_leaves(conn, oids)
    identities = leaf_identities(conn, oids)
    types = type_definitions(conn, {column.type_oid for found in columns.values() for column in found})
    tables = [
        _published(
            _identified(info, columns[info.oid], identities.get(info.oid, ())),
            members[info.oid],
            columns[info.oid],
            leaves.get(info.oid, ()),
            known,
            (stands[info.oid], types),
        )
        for info in _tables(conn, oids)
    ]
    whole = {table.relation.oid for table in tables} == set(oids)
    return sorted(tables, key=lambda table: (table.relation.schema, table.relation.name)), whole


@dataclass(frozen=True, slots=True)
class _Membership:
    """One table in one publication. `columns` None stands for all that are published by default."""

    oid: int
    publication: str
    columns: list[int] | None
    row_filter: str | None


@dataclass(frozen=True, slots=True)
class _Table:
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
class _Attribute:
    table: int
    number: int
    name: str
    type_oid: int
    type_modifier: int
    generated: str
    changed_by: str
    expression: str | None
    inputs: list[int]


def _memberships(conn: psycopg.Connection, publications: Sequence[str]) -> dict[int, list[_Membership]]:
    # Before 15 the function gives the table only: there were no column lists and filters yet.
    details = (
        "published.attrs::int2[]::int4[] as columns, pg_get_expr(published.qual, published.relid) as row_filter"
        if conn.info.server_version >= 15_00_00
        else "null::int4[] as columns, null::text as row_filter"
    )
    with conn.cursor(row_factory=class_row(_Membership)) as cursor:
        cursor.execute(
            f"""select published.relid as oid, p.pubname as publication, {details}
                from pg_publication p, lateral pg_get_publication_tables(p.pubname) published
                where p.pubname = any(%s) order by p.pubname""",
            [list(publications)],
        )
        members: dict[int, list[_Membership]] = defaultdict(list)
        for row in cursor:
            members[row.oid].append(row)
        return members


def _tables(conn: psycopg.Connection, oids: list[int]) -> list[_Table]:
    # An index that Postgres itself would not accept as identity leaves the table without one.
    with conn.cursor(row_factory=class_row(_Table)) as cursor:
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


def _identified(table: _Table, attributes: list[_Attribute], leaves: Sequence[Identity]) -> _Table:
    """A table with the identity that its partitions give its rows."""
    if not leaves:
        return table
    names = {a.number: a.name for a in attributes}
    own = Identity(ReplicaIdentity(table.identity), frozenset(names[number] for number in table.key))
    found = told_apart(own, frozenset(names[number] for number in table.primary), leaves)
    if found == own:
        return table
    identity = found or NO_IDENTITY
    key = [number for number, name in names.items() if name in identity.key]
    return replace(table, identity=identity.kind.value, key=key, by_leaf=True, mixed=found is None)


def _columns(conn: psycopg.Connection, oids: list[int]) -> Mapping[int, list[_Attribute]]:
    # xmin changes when a type changes in place (ALTER … USING), which leaves name and type as they were; see `shape`
    with conn.cursor(row_factory=class_row(_Attribute)) as cursor:
        cursor.execute(
            """select a.attrelid::int8 as table, a.attnum::int4 as number, a.attname as name,
                      a.atttypid::int8 as type_oid, a.atttypmod as type_modifier, a.attgenerated::text as generated,
                      a.xmin::text as changed_by, pg_get_expr(d.adbin, d.adrelid) as expression,
                      case when d.oid is null then '{}'::int4[] else array(
                          select refobjsubid from pg_depend
                          where refclassid = 'pg_class'::regclass and refobjid = a.attrelid
                            and refobjsubid not in (0, a.attnum)
                            and (classid = 'pg_attrdef'::regclass and objid = d.oid  -- the second form until 14
                                 or classid = 'pg_class'::regclass and objid = a.attrelid and objsubid = a.attnum)
                          order by refobjsubid) end as inputs
               from pg_attribute a
                 left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum and a.attgenerated = 's'
               where a.attrelid = any(%s::oid[]) and a.attnum > 0 and not a.attisdropped
               order by a.attrelid, a.attnum""",
            [oids],
        )
        columns: dict[int, list[_Attribute]] = defaultdict(list)
        for row in cursor:
            columns[row.table].append(row)
        return columns


def load_leaves(conn: psycopg.Connection, oids: list[int]) -> dict[int, tuple[Leaf, ...]]:
    """The leaves of these tables, by the table's oid."""
    rows = conn.execute(
        """select root.oid::int8, leaf.oid::int8, n.nspname, leaf.relname,
                  leaf.relfilenode::int8,
                  leaf.relpages::int8, greatest(leaf.reltuples, 0)::int8,
                  array(select i.inhparent || ' ' || i.xmin from pg_partition_ancestors(leaf.oid) a
                          join pg_inherits i on i.inhrelid = a.relid order by 1)::text
           from unnest(%s::oid[]) as root(oid)
             join pg_class top on top.oid = root.oid
             cross join lateral (select root.oid as relid where top.relkind <> 'p'
                                 union all
                                 select tree.relid from pg_partition_tree(root.oid) tree
                                 where top.relkind = 'p' and tree.isleaf) part
             join pg_class leaf on leaf.oid = part.relid and leaf.relkind = 'r'
             join pg_namespace n on n.oid = leaf.relnamespace
           order by root.oid, leaf.oid""",
        [oids],
    ).fetchall()
    leaves: dict[int, list[Leaf]] = defaultdict(list)
    for root, *leaf in rows:
        leaves[root].append(Leaf(*leaf))
    return {root: tuple(found) for root, found in leaves.items()}


def _published(
    table: _Table,
    members: list[_Membership],
    attributes: list[_Attribute],
    leaves: tuple[Leaf, ...],
    publications: Mapping[str, Publication],
    traits: tuple[Standing, Mapping[int, TypeDefinition]],
) -> PublishedTable:
    stands, types = traits
    selections = {
        member.publication: _selected(member, attributes, publications[member.publication]) for member in members
    }
    chosen = next(iter(selections.values()))
    if any(other != chosen for other in selections.values()):
        raise PublicationUnusable(
            f"publications {', '.join(selections)} publish different columns of one table",
            f"{table.schema}.{table.name}",
            "give it the same column list in each, or follow one publication only",
        )
    kept = _kept(chosen, attributes)
    shown = _shown(table, kept, chosen)
    relation = Relation(table.oid, table.schema, table.name, ReplicaIdentity(table.identity), shown, table.by_leaf)
    row_filter = _combined_filter(members)
    unseen = _unseen(table, members, publications)
    pinned = table.kind == "p" or "truncate" in unseen
    made = sorted(publications[name].made for name in selections)
    shape = Shape(
        definition=digest(
            relation,
            [(a.number, a.generated, a.expression, _now(types, a)) for a in kept],
            (row_filter, made, stands.entries),
        ),
        columns=digest([(a.number, a.changed_by) for a in kept]),
        leaves={
            leaf.oid: LeafShape(digest(leaf.schema, leaf.name, leaf.attached), leaf.relfilenode) for leaf in leaves
        },
        pinned=pinned,
    )
    former = digest(
        relation,
        sorted((a.name, a.generated, a.changed_by, _formerly(types, a)) for a in kept),
        row_filter,
        made,
        stands.entries,
        [(leaf.oid, leaf.schema, leaf.name, leaf.attached) for leaf in leaves],
        [(leaf.oid, leaf.relfilenode) for leaf in leaves] if pinned else (),
    )
    left_out = tuple(a.name for a in attributes if a.generated == "s" and a not in kept)
    unsent = tuple(a.name for a in attributes if a.generated and a.number in table.key and a not in chosen)
    return PublishedTable(
        relation,
        leaves,
        row_filter,
        shape.encoded(),
        shape.read_as,
        tuple(selections),
        unseen,
        left_out,
        unsent,
        table.mixed,
        former,
    )


def _now(types: Mapping[int, TypeDefinition], column: _Attribute) -> str | None:
    found = types.get(column.type_oid)
    return None if found is None else found.content


def _formerly(types: Mapping[int, TypeDefinition], column: _Attribute) -> str | None:
    found = types.get(column.type_oid)
    return None if found is None else found.former


def _unseen(table: _Table, members: Sequence[_Membership], publications: Mapping[str, Publication]) -> tuple[str, ...]:
    """Kinds of change that the stream does not have for all rows. Publications add up for each kind by itself: a row
    that only one lets pass which has no updates is not seen again."""
    unseen = []
    for operation in _OPERATIONS:
        telling = [m for m in members if operation in publications[m.publication].operations]
        partly = operation != "truncate" and telling and _combined_filter(telling) != _combined_filter(members)
        if not telling or partly or (table.mixed and operation in {"update", "delete"}):
            unseen.append(operation)
    return tuple(unseen)


def _selected(member: _Membership, attributes: list[_Attribute], publication: Publication) -> list[_Attribute]:
    """The columns that the stream carries. A column list names generated columns itself (18), else the publication
    decides; virtual ones have no stored value to send."""
    if member.columns is not None:
        listed = set(member.columns)
        return [a for a in attributes if a.number in listed and a.generated != "v"]
    return [a for a in attributes if not a.generated or (publication.generated and a.generated == "s")]


def _kept(streamed: list[_Attribute], attributes: list[_Attribute]) -> list[_Attribute]:
    """What the stream carries, and the stored generated columns that can be computed from it."""
    there = {a.number for a in streamed}
    return [a for a in attributes if a.number in there or (a.generated == "s" and there.issuperset(a.inputs))]


def _shown(table: _Table, kept: list[_Attribute], streamed: list[_Attribute]) -> tuple[Column, ...]:
    full = table.identity == ReplicaIdentity.FULL.value
    names = {a.number: a.name for a in kept}
    shown = []
    for a in kept:
        unsent = a.expression is not None and a not in streamed
        generated = Generated(a.expression or "", tuple(names[number] for number in a.inputs)) if unsent else None
        shown.append(Column(a.name, a.type_oid, a.type_modifier, full or a.number in table.key, generated))
    return tuple(shown)


def _combined_filter(members: Sequence[_Membership]) -> str | None:
    """Publications add up: a row passes if one lets it pass."""
    filters = [member.row_filter for member in members]
    if None in filters:
        return None
    return f"({' or '.join(f'({text})' for text in dict.fromkeys(filters))})"
