"""One consistent read of the catalog's rows about published tables. `published` makes tables of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import psycopg
from psycopg.rows import class_row

from headwater.oplog.change import ReplicaIdentity
from headwater.source.catalog.identity import (
    NO_IDENTITY,
    USABLE,
    Identity,
    common_identity,
    identifies,
    leaf_identities,
)
from headwater.source.catalog.leaves import Leaf, load_leaves
from headwater.source.catalog.publications import (
    Membership,
    Publication,
    PublicationUnusable,
    load_publications,
    memberships,
)
from headwater.source.catalog.shape import digest_sql
from headwater.source.catalog.traits import PublishingEntries, publishing_entries, type_definitions


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
    """Read what the publications publish, or `only` the table with this oid. Raises PublicationUnusable when a
    publication is missing."""
    known = load_publications(conn, publications)
    for name in publications:
        if name not in known:
            raise PublicationUnusable(
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
