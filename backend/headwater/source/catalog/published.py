"""What the source's catalog says about published tables, in the form in which the stream describes them.

Everything a table's content depends on, apart from its rows, goes into its shape, which a store keeps beside the rows:
it says whether they can be followed on by the stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import psycopg
from psycopg.rows import class_row

from headwater.decode.catalog import TYPE_QUERY, TypeCatalog
from headwater.errors import HeadwaterError, Kind
from headwater.oplog.change import Column, Generated, Relation, ReplicaIdentity
from headwater.source.catalog.identity import NO_IDENTITY, USABLE, Identity, identifies, leaf_identities, told_apart
from headwater.source.catalog.leaves import Leaf, load_leaves
from headwater.source.catalog.publications import OPERATIONS, Membership, Publication, load_publications, memberships
from headwater.source.catalog.shape import LeafShape, Shape, attached, digest, followed_on
from headwater.source.catalog.traits import Standing, TypeDefinition, standing, type_definitions
from headwater.source.catalog.words import Words, in_words

NOTHING = "(false)"
"""The row filter of a table whose own is not known."""


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
    earlier versions had for a shape: any difference in it was one of the table. Of one that somebody keeps `locked` it
    is not known what it is, since it has a row filter or generated columns: it is to be left as it was.
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
    locked: bool = False

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


def published_tables(
    conn: psycopg.Connection, publications: Sequence[str], only: int | None = None
) -> list[PublishedTable]:
    """Every table the publications publish, or `only` the one with this oid, ordered by schema and name, read in one
    consistent look at the catalog. No table that somebody keeps locked is waited for.

    Raises PublicationUnusable when a publication is missing or two of them want different columns of one table.
    """
    if conn.info.transaction_status != psycopg.pq.TransactionStatus.IDLE or not conn.autocommit:
        look = _look(conn, publications, only)
        return look.tables(in_words(conn, publications, look.worded))
    while True:  # as long as tables are made or altered while we look
        with conn.transaction():
            conn.execute("set transaction isolation level repeatable read read only")
            look = _look(conn, publications, only)
            words = in_words(conn, publications, look.worded)
        # An expression is put into words as of now, with the names that columns have by then
        if look.whole and (not look.worded or _entries(conn, look.worded) == look.entries(look.worded)):
            return look.tables(words)


def fingerprint_of(conn: psycopg.Connection, publications: Sequence[str], oid: int) -> str | None:
    """The `fingerprint` of a table, None for one that is not published."""
    with conn.transaction():
        if conn.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS:
            conn.execute("set transaction isolation level repeatable read read only")
        found = _look(conn, publications, oid).tables(Words())
    return found[0].fingerprint if found else None


def load_types(conn: psycopg.Connection, oids: Iterable[int]) -> TypeCatalog:
    """Descriptions of these types and of every type they are made of."""
    return TypeCatalog.from_rows(conn.execute(TYPE_QUERY, {"oids": sorted(set(oids))}).fetchall())


@dataclass(frozen=True, slots=True)
class _Look:
    """What one look brought, without the expressions in words, which the tables `worded` have. Unless it is `whole`,
    some tables came or went meanwhile."""

    publications: Mapping[str, Publication]
    members: Mapping[int, list[Membership]]
    stands: Mapping[int, Standing]
    columns: Mapping[int, list[_Attribute]]
    leaves: Mapping[int, tuple[Leaf, ...]]
    types: Mapping[int, TypeDefinition]
    found: tuple[_Table, ...]
    whole: bool

    @property
    def worded(self) -> frozenset[int]:
        filtered = {t.oid for t in self.found if any(m.filtered is not None for m in self.members[t.oid])}
        generated = {t.oid for t in self.found if any(a.generated == "s" for a in self.columns[t.oid])}
        return frozenset(filtered | generated)

    def entries(self, oids: Iterable[int]) -> set[tuple[int, int, str]]:
        """Of their columns in the catalog: others when one got another name, even if it has its former one again."""
        return {(a.table, a.number, a.changed_by) for oid in oids for a in self.columns[oid]}

    def tables(self, words: Words) -> list[PublishedTable]:
        tables = [_published(self, table, words) for table in self.found]
        return sorted(tables, key=lambda table: (table.relation.schema, table.relation.name))


def _entries(conn: psycopg.Connection, oids: Iterable[int]) -> set[tuple[int, int, str]]:
    return set(
        conn.execute(
            """select attrelid::int8, attnum::int4, xmin::text from pg_attribute
               where attrelid = any(%s::oid[]) and attnum > 0 and not attisdropped""",
            [list(oids)],
        ).fetchall()
    )


def _look(conn: psycopg.Connection, publications: Sequence[str], only: int | None) -> _Look:
    known = load_publications(conn, publications)
    for name in publications:
        if name not in known:
            raise PublicationUnusable(
                f'publication "{name}" does not exist', conn.info.dbname, "run `headwater source prepare`"
            )
    members = memberships(conn, publications)
    sought = [oid for oid in members if only in {None, oid}]
    stands = standing(conn, sought, publications)
    oids = [oid for oid in sought if not members.keys() & stands[oid].ancestors]  # else the root stands for it
    columns = _columns(conn, oids)
    leaves = load_leaves(conn, oids)
    identities = leaf_identities(conn, oids)
    found = tuple(_identified(info, columns[info.oid], identities.get(info.oid, ())) for info in _tables(conn, oids))
    return _Look(
        known,
        members,
        stands,
        columns,
        leaves,
        type_definitions(conn, {column.type_oid for each in columns.values() for column in each}),
        found,
        whole={table.oid for table in found} == set(oids),
    )


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
    computed: str | None
    inputs: list[int]


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
                      a.xmin::text as changed_by, md5(d.adbin::text) as computed,
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


def _published(look: _Look, table: _Table, words: Words) -> PublishedTable:
    members, attributes = look.members[table.oid], look.columns[table.oid]
    leaves, locked = look.leaves.get(table.oid, ()), table.oid in words.locked
    chosen = _chosen(look, table)
    kept = _kept(chosen, attributes)
    expressions = {a.number: words.generated.get((a.table, a.number), "") for a in kept if a.computed is not None}
    shown = _shown(table, kept, chosen, expressions)
    relation = Relation(table.oid, table.schema, table.name, ReplicaIdentity(table.identity), shown, table.by_leaf)
    filters = {m.publication: words.filters.get((m.oid, m.publication), m.filtered) for m in members}
    row_filter = NOTHING if locked else _combined(filters.values())
    unseen = _unseen(table, filters, look.publications)
    pinned = table.kind == "p" or "truncate" in unseen
    made = sorted(look.publications[name].made for name in filters)
    entries = look.stands[table.oid].entries
    shape = Shape(
        definition=digest(
            relation,
            [(a.number, a.generated, expressions.get(a.number), _now(look.types, a)) for a in kept],
            (row_filter, made, entries),
        ),
        columns=digest([(a.number, a.changed_by) for a in kept]),
        leaves={
            leaf.oid: LeafShape(digest(leaf.schema, leaf.name, leaf.attached), leaf.relfilenode) for leaf in leaves
        },
        pinned=pinned,
    )
    former = digest(
        relation,
        sorted((a.name, a.generated, a.changed_by, _formerly(look.types, a)) for a in kept),
        row_filter,
        made,
        entries,
        [(leaf.oid, leaf.schema, leaf.name, leaf.attached) for leaf in leaves],
        [(leaf.oid, leaf.relfilenode) for leaf in leaves] if pinned else (),
    )
    read_as = digest(
        replace(relation, columns=()),
        [(replace(a, changed_by=""), a.number in table.key, _now(look.types, a)) for a in kept],
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
        left_out=tuple(a.name for a in attributes if a.generated == "s" and a not in kept),
        unsent_key=tuple(a.name for a in attributes if a.generated and a.number in table.key and a not in chosen),
        mixed=table.mixed,
        former=former,
        locked=locked,
    )


def _chosen(look: _Look, table: _Table) -> list[_Attribute]:
    """The columns that all publications of a table send."""
    attributes = look.columns[table.oid]
    selections = {
        member.publication: _selected(member, attributes, look.publications[member.publication])
        for member in look.members[table.oid]
    }
    chosen = next(iter(selections.values()))
    if any(other != chosen for other in selections.values()):
        raise PublicationUnusable(
            f"publications {', '.join(selections)} publish different columns of one table",
            f"{table.schema}.{table.name}",
            "give it the same column list in each, or follow one publication only",
        )
    return chosen


def _now(types: Mapping[int, TypeDefinition], column: _Attribute) -> str | None:
    found = types.get(column.type_oid)
    return None if found is None else found.content


def _formerly(types: Mapping[int, TypeDefinition], column: _Attribute) -> str | None:
    found = types.get(column.type_oid)
    return None if found is None else found.former


def _unseen(
    table: _Table, filters: Mapping[str, str | None], publications: Mapping[str, Publication]
) -> tuple[str, ...]:
    """Kinds of change that the stream does not have for all rows. Publications add up for each kind by itself: a row
    that only one lets pass which has no updates is not seen again."""
    unseen = []
    for operation in OPERATIONS:
        telling = [found for name, found in filters.items() if operation in publications[name].operations]
        partly = operation != "truncate" and telling and _combined(telling) != _combined(filters.values())
        if not telling or partly or (table.mixed and operation in {"update", "delete"}):
            unseen.append(operation)
    return tuple(unseen)


def _selected(member: Membership, attributes: list[_Attribute], publication: Publication) -> list[_Attribute]:
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


def _shown(
    table: _Table, kept: list[_Attribute], streamed: list[_Attribute], expressions: Mapping[int, str]
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
    """Publications add up: a row passes if one lets it pass."""
    if None in filters:
        return None
    return f"({' or '.join(f'({text})' for text in dict.fromkeys(filters))})"
