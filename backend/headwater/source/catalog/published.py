"""Published tables, in the form in which the stream describes them.

Everything that a table's content depends on, apart from its rows, goes into its shape. A store keeps the shape with the
rows, to decide later whether the stream still continues them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import psycopg
from psycopg import errors

from headwater.decode.types import TYPE_QUERY, TypeCatalog
from headwater.errors import HeadwaterError
from headwater.oplog.change import Column, Generated, Relation, ReplicaIdentity
from headwater.source.catalog.publications import OPERATIONS, Membership, Publication, PublicationError
from headwater.source.catalog.read import CatalogRead, ColumnRow, Leaf, TableRow, column_entries, read_catalog
from headwater.source.catalog.shape import LeafShape, Shape, all_streamed, attached, digest, followed_on
from headwater.source.connect import SourceSettings, connect, sql_name

NOTHING = "(false)"
"""The row filter of a locked table, whose own can't be read."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as it is published to us.

    `relation` equals the stream's Relation message, except that it always has generated columns, and that its
    identity is the one that the partitions decide. `row_filter` is an SQL condition over the table's columns in
    parentheses, None for all rows. `shape` is the text of a `Shape`; while `fingerprint` stays the same, parts that
    were read at different times belong together. `publications` are those that publish the table, `unseen` the kinds of
    change that they do not publish for all rows. `mixed`: the identities of the partitions have nothing in common, so
    updates and deletes are unseen. `left_out` names generated columns that can't be computed, since their inputs are
    not published; `virtual` those that Postgres never streams; `unsent_key` those that identify a row, but are not
    streamed. `locked`: the row filter or generated columns can't be read now, so the table has to be left as it
    was."""

    relation: Relation
    leaves: tuple[Leaf, ...]
    row_filter: str | None
    shape: str
    fingerprint: str
    publications: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    virtual: tuple[str, ...] = ()
    unsent_key: tuple[str, ...] = ()
    mixed: bool = False
    locked: bool = False

    def followed_on(self, shape: str) -> bool:
        """Whether the stream continues rows that were stored under that shape."""
        return followed_on(shape, self.shape)

    def all_streamed_since(self, shape: str) -> bool:
        """Whether the stream has told of all that happened to rows since they were stored under that shape."""
        return all_streamed(shape, self.shape)

    def attached_since(self, shape: str) -> frozenset[int]:
        """The oids of the leaves that were attached since rows were stored under that shape. Empty if anything else
        changed."""
        return attached(shape, self.shape)

    @property
    def qualified_name(self) -> str:
        return self.relation.qualified_name

    @property
    def estimated_rows(self) -> int:
        return sum(leaf.estimated_rows for leaf in self.leaves)


class KeyNotSentError(HeadwaterError):
    """Rows of a table are identified by columns that are not streamed."""

    code = "HW_2026"


def unsent_key_error(table: PublishedTable) -> KeyNotSentError:
    """The error for a table with an `unsent_key`."""
    return KeyNotSentError(
        f"generated columns identify a row, and Postgres does not stream them: {', '.join(table.unsent_key)}",
        table.qualified_name,
        f"run ALTER TABLE {sql_name(table.relation.schema)}.{sql_name(table.relation.name)} REPLICA IDENTITY FULL,"
        " or USING INDEX one of ordinary columns",
    )


def published_tables(
    conn: psycopg.Connection, publications: Sequence[str], only: int | None = None
) -> list[PublishedTable]:
    """Every table that the publications publish, or `only` the one with this oid, by schema and name, from one
    consistent read of the catalog. Does not wait for locked tables.

    Raises PublicationError when a publication is missing, or two publish different columns of one table.
    """
    if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE or not conn.autocommit:
        read = read_catalog(conn, publications, only)
        return _tables(read, read_expressions(conn, publications, read.with_expressions))
    while True:  # again while tables are created or altered at the same time
        with conn.transaction():
            conn.execute("set transaction isolation level repeatable read read only")
            read = read_catalog(conn, publications, only)
            words = read_expressions(conn, publications, read.with_expressions)
        # Postgres gives the text of an expression with the column names of now, whatever the transaction's snapshot
        if read.whole and (
            not read.with_expressions
            or column_entries(conn, read.with_expressions) == read.entries(read.with_expressions)
        ):
            return _tables(read, words)


def fingerprint_of(conn: psycopg.Connection, publications: Sequence[str], oid: int) -> str | None:
    """The `fingerprint` of a table, None for one that is not published."""
    with conn.transaction():
        if conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
            conn.execute("set transaction isolation level repeatable read read only")
        found = _tables(read_catalog(conn, publications, oid), Expressions())
    return found[0].fingerprint if found else None


def load_types(conn: psycopg.Connection, oids: Iterable[int]) -> TypeCatalog:
    """Descriptions of these types, and of all types that they are made of."""
    return TypeCatalog.from_rows(conn.execute(TYPE_QUERY, {"oids": sorted(set(oids))}).fetchall())


def _tables(read: CatalogRead, words: Expressions) -> list[PublishedTable]:
    tables = [_published(read, table, words) for table in read.found]
    return sorted(tables, key=lambda table: (table.relation.schema, table.relation.name))


def _published(read: CatalogRead, table: TableRow, words: Expressions) -> PublishedTable:
    members, attributes = read.members[table.oid], read.columns[table.oid]
    leaves, locked = read.leaves.get(table.oid, ()), table.oid in words.locked
    chosen = _chosen(read, table)
    kept = _kept(chosen, attributes)
    expressions = {a.number: words.generated.get((a.table, a.number), "") for a in kept if a.computed is not None}
    shown = _shown(table, kept, chosen, expressions)
    relation = Relation(table.oid, table.schema, table.name, ReplicaIdentity(table.identity), shown, table.by_leaf)
    filters = {m.publication: words.filters.get((m.oid, m.publication), m.filtered) for m in members}
    row_filter = NOTHING if locked else _combined(filters.values())
    unseen = _unseen(table, filters, read.publications)
    pinned = table.kind == "p" or "truncate" in unseen
    made = sorted(read.publications[name].made for name in filters)
    entries = read.publishing[table.oid].entries
    types = [read.types.get(a.type_oid, "") for a in kept]
    shape = Shape(
        definition=digest(
            relation,
            [(a.number, a.generated, expressions.get(a.number)) for a in kept],
            types,
            (row_filter, made, entries),
        ),
        columns=digest([(a.number, a.changed_by) for a in kept]),
        leaves={
            leaf.oid: LeafShape(digest(leaf.schema, leaf.name, leaf.attached), leaf.relfilenode) for leaf in leaves
        },
        pinned=pinned,
        streamed=digest(row_filter, made, entries, sorted(unseen), sorted(set(types))),
    )
    read_as = digest(
        replace(relation, columns=()),
        [(replace(a, changed_by=""), a.number in table.key) for a in kept],
        types,
        [(m.publication, m.filtered) for m in members],
        (made, entries),
        sorted(shape.leaves.items()),
    )
    return PublishedTable(
        relation,
        leaves,
        row_filter,
        shape.encoded(),
        read_as,
        tuple(filters),
        unseen,
        left_out=tuple(a.name for a in attributes if a.generated and a not in kept),
        virtual=tuple(a.name for a in attributes if a.generated == "v"),
        unsent_key=tuple(a.name for a in attributes if a.generated and a.number in table.key and a not in chosen),
        mixed=table.mixed,
        locked=locked,
    )


def _chosen(read: CatalogRead, table: TableRow) -> list[ColumnRow]:
    """The columns of a table that its publications send. Raises PublicationError when they differ."""
    attributes = read.columns[table.oid]
    selections = {
        member.publication: _selected(member, attributes, read.publications[member.publication])
        for member in read.members[table.oid]
    }
    chosen = next(iter(selections.values()))
    if any(other != chosen for other in selections.values()):
        raise PublicationError(
            f"publications {', '.join(selections)} publish different columns of one table",
            f"{table.schema}.{table.name}",
            "give it the same column list in each, or follow one publication only",
        )
    return chosen


def _unseen(
    table: TableRow, filters: Mapping[str, str | None], publications: Mapping[str, Publication]
) -> tuple[str, ...]:
    """Kinds of change that are not streamed for all rows. For each kind, only the publications with that kind count: a
    row that passes only the filter of one without updates is never seen updated."""
    unseen = []
    for operation in OPERATIONS:
        telling = [found for name, found in filters.items() if operation in publications[name].operations]
        partly = operation != "truncate" and telling and _combined(telling) != _combined(filters.values())
        if not telling or partly or (table.mixed and operation in {"update", "delete"}):
            unseen.append(operation)
    return tuple(unseen)


def _selected(member: Membership, attributes: list[ColumnRow], publication: Publication) -> list[ColumnRow]:
    """The columns that are streamed. From version 18 on, a column list can name generated columns, else the publication
    decides; virtual ones are never streamed."""
    if member.columns is not None:
        listed = set(member.columns)
        return [a for a in attributes if a.number in listed and a.generated != "v"]
    return [a for a in attributes if not a.generated or (publication.generated and a.generated == "s")]


def _kept(streamed: list[ColumnRow], attributes: list[ColumnRow]) -> list[ColumnRow]:
    """The streamed columns, and generated columns that can be computed from them."""
    there = {a.number for a in streamed}
    return [a for a in attributes if a.number in there or (a.generated and there.issuperset(a.inputs))]


def _shown(
    table: TableRow, kept: list[ColumnRow], streamed: list[ColumnRow], expressions: Mapping[int, str]
) -> tuple[Column, ...]:
    full = table.identity == ReplicaIdentity.FULL.value
    names = {a.number: a.name for a in kept}
    shown = []
    for a in kept:
        unsent = a.number in expressions and a not in streamed
        inputs = tuple(names[number] for number in a.inputs) if unsent else ()
        generated = Generated(expressions[a.number], inputs) if unsent else None
        shown.append(Column(a.name, a.type_oid, a.type_modifier, full or a.number in table.key, generated))
    return tuple(shown)


def _combined(filters: Collection[str | None]) -> str | None:
    """The union of the filters: a row is published if one publication's filter lets it pass."""
    if None in filters:
        return None
    return f"({' or '.join(f'({text})' for text in dict.fromkeys(filters))})"


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


_SIZES = """
select c.oid::int8, (coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8)::int8, c.relpages::int8
from pg_class c where c.oid = any(%s::oid[])
"""


def measured(source: SourceSettings, tables: Sequence[PublishedTable]) -> list[PublishedTable]:
    """The tables with their present sizes, and the planner's estimates of rows scaled to these. Raises what `connect`
    raises."""
    oids = [leaf.oid for table in tables for leaf in table.leaves]
    with connect(source, application_name="headwater sizes", patient=True) as conn:
        conn.execute("set lock_timeout = '2s'")
        try:
            found = {oid: (pages, known) for oid, pages, known in conn.execute(_SIZES, [oids]).fetchall()}
        except errors.LockNotAvailable:
            return list(tables)
    leaves = [tuple(_sized(leaf, *found.get(leaf.oid, (0, 0))) for leaf in table.leaves) for table in tables]
    return [replace(table, leaves=own) for table, own in zip(tables, leaves, strict=True)]


def _sized(leaf: Leaf, pages: int, known: int) -> Leaf:
    """`known` is the number of pages that the planner's estimate is for."""
    return replace(leaf, pages=pages, estimated_rows=leaf.estimated_rows * pages // known if known else 0)
