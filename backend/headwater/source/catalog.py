"""What the source's catalog says about published tables, in the form in which the stream describes them.

Everything a table's content depends on, apart from its rows, goes into its fingerprint: two equal fingerprints mean
that rows read under one can be followed by the stream under the other.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import psycopg
from psycopg.rows import class_row

from headwater.decode.catalog import TYPE_QUERY, TypeCatalog
from headwater.errors import HeadwaterError, Kind
from headwater.oplog.change import Column, Relation, ReplicaIdentity


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows: the published table itself, or one partition of it. `pages` counts its present 8 kB
    blocks, `estimated_rows` is the planner's guess (0 when it never looked)."""

    oid: int
    schema: str
    name: str
    relfilenode: int
    pages: int
    estimated_rows: int


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as the publications give it to us.

    `relation` equals the stream's Relation message. `row_filter` is an SQL condition over the table's columns in
    parentheses, None for all rows. `shape` covers everything but where the rows lie (`relfilenode`); `fingerprint`
    covers both.
    """

    relation: Relation
    leaves: tuple[Leaf, ...]
    row_filter: str | None
    shape: str
    fingerprint: str

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


class Publication(NamedTuple):
    """One row of pg_publication, with what it publishes."""

    name: str
    all_tables: bool
    via_root: bool
    operations: tuple[str, ...]
    generated: bool

    @property
    def missing_operations(self) -> tuple[str, ...]:
        return tuple(op for op in ("insert", "update", "delete", "truncate") if op not in self.operations)


def load_publications(conn: psycopg.Connection, names: Sequence[str]) -> dict[str, Publication]:
    """Those of the named publications that exist."""
    generated = "pubgencols::text = 's'" if conn.info.server_version >= 18_00_00 else "false"
    rows = conn.execute(
        f"""select pubname, puballtables, pubviaroot, {generated},
                   array_remove(array[case when pubinsert then 'insert' end, case when pubupdate then 'update' end,
                     case when pubdelete then 'delete' end, case when pubtruncate then 'truncate' end], null)
            from pg_publication where pubname = any(%s)""",
        [list(names)],
    ).fetchall()
    return {name: Publication(name, every, root, tuple(ops), gen) for name, every, root, gen, ops in rows}


def published_tables(conn: psycopg.Connection, publications: Sequence[str]) -> list[PublishedTable]:
    """Every table the publications publish, ordered by schema and name, read in one consistent look at the catalog.

    Raises PublicationUnusable when a publication is missing or two of them want different columns of one table.
    """
    if conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE and conn.autocommit:
        with conn.transaction():
            conn.execute("set transaction isolation level repeatable read read only")
            return _published_tables(conn, publications)
    return _published_tables(conn, publications)


def load_types(conn: psycopg.Connection, oids: Iterable[int]) -> TypeCatalog:
    """Descriptions of these types and of every type they are made of."""
    return TypeCatalog.from_rows(conn.execute(TYPE_QUERY, {"oids": sorted(set(oids))}).fetchall())


def _published_tables(conn: psycopg.Connection, publications: Sequence[str]) -> list[PublishedTable]:
    known = load_publications(conn, publications)
    for name in publications:
        if name not in known:
            raise PublicationUnusable(
                f'publication "{name}" does not exist', conn.info.dbname, "run `headwater source prepare`"
            )
    members = _memberships(conn, publications)
    oids = list(members)
    columns = _columns(conn, oids)
    leaves = _leaves(conn, oids)
    tables = [
        _published(info, members[info.oid], columns[info.oid], leaves.get(info.oid, ()), known)
        for info in _tables(conn, oids)
    ]
    return sorted(tables, key=lambda table: (table.relation.schema, table.relation.name))


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


@dataclass(frozen=True, slots=True)
class _Attribute:
    table: int
    number: int
    name: str
    type_oid: int
    type_modifier: int
    generated: str
    changed_by: str


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
            """select c.oid::int8 as oid, n.nspname as schema, c.relname as name, c.relreplident::text as identity,
                      c.relkind::text as kind,
                      coalesce((select (i.indkey::int2[])[0:i.indnkeyatts - 1]::int4[] from pg_index i
                                where i.indrelid = c.oid and i.indisvalid and i.indisunique and i.indimmediate
                                  and i.indpred is null
                                  and case c.relreplident when 'd' then i.indisprimary
                                                          when 'i' then i.indisreplident else false end),
                               '{}') as key
               from pg_class c join pg_namespace n on n.oid = c.relnamespace
               where c.oid = any(%s::oid[])""",
            [oids],
        )
        return cursor.fetchall()


def _columns(conn: psycopg.Connection, oids: list[int]) -> Mapping[int, list[_Attribute]]:
    # xmin changes when a type changes in place (ALTER … USING), which leaves name and type as they were
    with conn.cursor(row_factory=class_row(_Attribute)) as cursor:
        cursor.execute(
            """select attrelid::int8 as table, attnum::int4 as number, attname as name, atttypid::int8 as type_oid,
                      atttypmod as type_modifier, attgenerated::text as generated, xmin::text as changed_by
               from pg_attribute where attrelid = any(%s::oid[]) and attnum > 0 and not attisdropped
               order by attrelid, attnum""",
            [oids],
        )
        columns: dict[int, list[_Attribute]] = defaultdict(list)
        for row in cursor:
            columns[row.table].append(row)
        return columns


def _leaves(conn: psycopg.Connection, oids: list[int]) -> dict[int, tuple[Leaf, ...]]:
    rows = conn.execute(
        """select root.oid::int8, leaf.oid::int8, n.nspname, leaf.relname,
                  leaf.relfilenode::int8,
                  (coalesce(pg_relation_size(leaf.oid), 0) / current_setting('block_size')::int8)::int8,
                  greatest(leaf.reltuples, 0)::int8
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
) -> PublishedTable:
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
    relation = Relation(table.oid, table.schema, table.name, ReplicaIdentity(table.identity), _shown(table, chosen))
    row_filter = _combined_filter(members)
    operations = sorted((pub, publications[pub].operations, publications[pub].via_root) for pub in selections)
    shape = _digest(
        relation,
        sorted((a.name, a.generated, a.changed_by) for a in chosen),
        row_filter,
        operations,
        [(leaf.oid, leaf.schema, leaf.name) for leaf in leaves],
    )
    fingerprint = _digest(shape, [(leaf.oid, leaf.relfilenode) for leaf in leaves])
    return PublishedTable(relation, leaves, row_filter, shape, fingerprint)


def _selected(member: _Membership, attributes: list[_Attribute], publication: Publication) -> list[_Attribute]:
    """The columns that the stream carries. A column list names generated columns itself (18), else the publication
    decides; virtual ones have no stored value to send."""
    if member.columns is not None:
        listed = set(member.columns)
        return [a for a in attributes if a.number in listed and a.generated != "v"]
    return [a for a in attributes if not a.generated or (publication.generated and a.generated == "s")]


def _shown(table: _Table, attributes: list[_Attribute]) -> tuple[Column, ...]:
    full = table.identity == ReplicaIdentity.FULL.value
    return tuple(Column(a.name, a.type_oid, a.type_modifier, full or a.number in table.key) for a in attributes)


def _combined_filter(members: list[_Membership]) -> str | None:
    """Publications add up: a row passes if one lets it pass."""
    filters = [member.row_filter for member in members]
    if None in filters:
        return None
    return f"({' or '.join(f'({text})' for text in dict.fromkeys(filters))})"


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()
