"""Random changes of tables and of what is published of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from tests.storm.ledger import EVERYTHING, Ledger
from tests.storm.secrets import private_for_a_while, replaced_by_one_with_a_past
from tests.storm.tables import KINDS, REGIONS, Kind
from tests.storm.writers import Log, connect_patiently

_CORE = frozenset({"id", "owner", "n", "body", "big", "a", "b", "region", "room", "spec"})
_TYPES = {"integer": "bigint", "bigint": "text", "text": "text"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table as it is now. `columns` by name, with their types."""

    kind: Kind
    columns: dict[str, str]
    published: bool
    version: int
    number: int

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def extra(self) -> list[str]:
        return sorted(self.columns.keys() - _CORE)

    @property
    def partitioned(self) -> bool:
        return self.name == "leaves"


Change = Callable[[random.Random, Table], str]
"""Says in SQL what to do to a table; nothing if that is impossible now."""


def _add(definition: str) -> Change:
    return lambda chance, table: f"alter table {table.name} add column x{table.number} {definition}"


def _on_extra(statement: str) -> Change:
    def change(chance: random.Random, table: Table) -> str:
        if not table.extra:
            return ""
        column = chance.choice(table.extra)
        wider = _TYPES.get(table.columns[column], "text")
        return statement.format(table=table.name, column=column, wider=wider, number=table.number)

    return change


def _plainly(statement: str) -> Change:
    return lambda chance, table: statement.format(table=table.name, number=table.number)


def _identity(chance: random.Random, table: Table) -> str:
    if table.partitioned:
        return ""
    choices = ["full", "nothing"] if table.kind.fixed or not table.kind.key else ["full", "full", "default", "nothing"]
    choices += {"indexed": ["using index indexed_by_id"] * 3, "keyed": ["using index keyed_pkey"] * 2}.get(
        table.name, []
    )
    return f"alter table {table.name} replica identity {chance.choice(choices)}"


def _anew(chance: random.Random, table: Table) -> str:
    rows = chance.randrange(5)
    columns, values = "id, owner, n, body", "i::text, 'u0', i, 'anew'"
    if table.name == "paired":
        columns, values = f"a, b, {columns}", f"90, i::text, {values}"
    if table.partitioned:
        columns, values = f"region, {columns}", f"'east', {values}"
    return (
        f"drop table {table.name}; {table.kind.create()}"
        f" insert into {table.name} ({columns}) select {values} from generate_series(100, {99 + rows}) i;"
        f" alter publication headwater add table {table.name}"
    )


def _swap(chance: random.Random, table: Table) -> str:
    if table.partitioned:
        return ""
    other = f"{table.name}_{table.number}"
    full = f"alter table {other} replica identity full;" if not table.kind.key or table.name == "indexed" else ""
    return (
        f"create table {other} (like {table.name} including all); {full}"
        f" insert into {other} select * from {table.name} where n % 3 > 0;"
        f" alter table {table.name} rename to {table.name}_old_{table.number};"
        f" alter publication headwater drop table {table.name}_old_{table.number};"
        f" drop table {table.name}_old_{table.number}; alter table {other} rename to {table.name};"
        f" alter publication headwater add table {table.name}"
    )


def _away_and_back(chance: random.Random, table: Table) -> str:
    if table.kind.fixed:
        return ""
    there = f"alter table {table.name} rename to away; update away set n = n + 1 where n < 20;"
    return f"{there} alter table away rename to {table.name}"


def _published_otherwise(chance: random.Random, table: Table) -> str:
    if table.version < 15_00_00:
        return ""
    columns = ""
    if chance.random() < 0.5:
        kept = [c for c in table.columns if c in {"id", "a", "b", "region", "owner", "room"} or chance.random() < 0.5]
        columns = f" ({', '.join(kept)})"
    condition = ""
    if chance.random() < 0.5:
        condition = f" where ({chance.choice(['id > %s', 'id < %s']) % repr(str(chance.randrange(40)))})"
    drop = f"alter publication headwater drop table {table.name};" if table.published else ""
    return f"{drop} alter publication headwater add table {table.name}{columns}{condition}"


def _publish(chance: random.Random, table: Table) -> str:
    return "" if table.published else f"alter publication headwater add table {table.name}"


def _unpublish(chance: random.Random, table: Table) -> str:
    return f"alter publication headwater drop table {table.name}" if table.published else ""


def _unpublished_for_a_while(chance: random.Random, table: Table) -> str:
    again = f"alter publication headwater add table {table.name}"
    return _unpublish(chance, table) and f"{_unpublish(chance, table)}; {_touch(table)} {again}"


def _on_leaf(statement: str) -> Change:
    def change(chance: random.Random, table: Table) -> str:
        region = chance.choice(REGIONS)
        return statement.format(leaf=f"leaves_{region}", region=region) if table.partitioned else ""

    return change


def _leaf_out_and_in(chance: random.Random, table: Table) -> str:
    region = chance.choice(REGIONS)
    between = chance.choice(
        ["", f"update leaves_{region} set n = n + 1;", f"delete from leaves_{region} where n < 50;"]
    )
    if not table.partitioned:
        return ""
    return (
        f"alter table leaves detach partition leaves_{region}; {between}"
        f" alter table leaves attach partition leaves_{region} for values in ('{region}')"
    )


def _touch(table: Table) -> str:
    return "" if table.kind.fixed else f"update {table.name} set n = n + 1 where n % 2 = 0;"


def _published_anew(chance: random.Random, table: Table) -> str:
    return f"""do $$ declare members text; begin
        select string_agg(quote_ident(tablename), ', ') into members from pg_publication_tables
          where pubname = 'headwater';
        drop publication headwater; {chance.choice(["", _touch(table)])}
        execute 'create publication headwater for table ' || members || ' with (publish_via_partition_root)'; end $$"""


def _otherwise_for_a_while(setting: str, usual: str) -> Change:
    def change(chance: random.Random, table: Table) -> str:
        return f"alter publication headwater set ({setting}); {_touch(table)} alter publication headwater set ({usual})"

    return change


def _on_type(prefix: str, statement: str) -> Change:
    """With a type of that name, of one of the table's columns."""

    def change(chance: random.Random, table: Table) -> str:
        types = sorted(kind for kind in table.columns.values() if kind.startswith(prefix))
        return statement.format(type=chance.choice(types), number=table.number) if types else ""

    return change


CHANGES: dict[str, Change] = {
    "column added": _add("text"),
    "column added with a constant": _add("int default 7"),
    "column added with what differs": _add("text default (random() * 1000)::int::text"),
    "column dropped": _on_extra("alter table {table} drop column {column}"),
    "column dropped and made again": _on_extra(
        "alter table {table} drop column {column}, add column {column} int default 9"
    ),
    "column renamed": _on_extra("alter table {table} rename column {column} to x{number}"),
    "type changed": _on_extra("alter table {table} alter column {column} type {wider}"),
    "column rewritten in place": _plainly("alter table {table} alter column n type int using n % 50"),
    "default changed": _plainly("alter table {table} alter column body set default 'y'"),
    "key column widened": lambda _, t: (
        "alter table paired alter column a type bigint" if t.name == "paired" and t.columns["a"] == "integer" else ""
    ),
    "another shape within a transaction": _plainly(
        "begin; alter table {table} add column tmp text default 't';"
        " insert into {table} select * from {table} where false; alter table {table} drop column tmp; commit"
    ),
    "rewritten": lambda _, t: "" if t.partitioned else f"vacuum full {t.name}",
    "identity": _identity,
    "dropped and made again": _anew,
    "swapped": _swap,
    "renamed and back": _away_and_back,
    "published otherwise": _published_otherwise,
    "published": _publish,
    "not published": _unpublish,
    "not published for a while": _unpublished_for_a_while,
    "schema left and entered": _plainly(
        "create schema if not exists aside; alter table {table} set schema aside;"
        " alter table aside.{table} set schema public"
    ),
    "partition out and in": _leaf_out_and_in,
    "partition emptied": _on_leaf("truncate {leaf}"),
    "partition made again": _on_leaf(
        "drop table {leaf}; create table {leaf} partition of leaves for values in ('{region}')"
    ),
    "emptied": _plainly("truncate {table}"),
    "column of an enum added": _plainly(
        "create type mood_{number} as enum ('ok', 'bad');"
        " alter table {table} add column x{number} mood_{number} default 'ok'"
    ),
    "enum value renamed": _on_type(
        "mood_",
        "do $$ begin execute format('alter type {type} rename value %L to %L',"
        " (select max(v::text) from unnest(enum_range(null::{type})) v), 'v{number}'); end $$",
    ),
    "enum value added": _on_type("mood_", "alter type {type} add value 'a{number}'"),
    "column of a composite type added": _plainly(
        "create type spot_{number} as (x int, y text);"
        " alter table {table} add column x{number} spot_{number} default '(1,one)'"
    ),
    "attribute added": _on_type("spot_", "alter type {type} add attribute a{number} int"),
    "attribute rewritten": _on_type(
        "spot_", "alter type {type} drop attribute y; alter type {type} add attribute y text"
    ),
    "index made again": lambda _, t: (
        "drop index indexed_by_id; create unique index indexed_by_id on indexed (id);"
        " alter table indexed replica identity using index indexed_by_id"
        if t.name == "indexed"
        else ""
    ),
    "publication made again": _published_anew,
    "operations not published for a while": _otherwise_for_a_while(
        "publish = 'insert'", "publish = 'insert, update, delete, truncate'"
    ),
    "published by leaf for a while": _otherwise_for_a_while(
        "publish_via_partition_root = false", "publish_via_partition_root = true"
    ),
    "private for a while": private_for_a_while,
    "replaced by one with a past": replaced_by_one_with_a_past,
}
_SECRETIVE = ("private for a while", "replaced by one with a past")
_OF_ALL = {"publication made again", "operations not published for a while", "published by leaf for a while"}


class Changes:
    """Makes one change after the other, of any table; often of the one with many rows, where there are `many`. `done`
    counts them by name."""

    def __init__(self, dsn: str, chance: random.Random, log: Log, *, many: bool) -> None:
        self._dsn = dsn
        self._chance = chance
        self._log = log
        self._many = many
        self._number = 0
        self.done: Counter[str] = Counter()

    def make(self, ledger: Ledger) -> None:
        """Change a table; that may fail, as when writers hold its lock."""
        with connect_patiently(self._dsn) as conn:
            conn.autocommit = True
            conn.execute("set lock_timeout = '4s'; set statement_timeout = '60s'")
            for _ in range(20):
                self._number += 1
                name, statement, table = self._choose(conn)
                if not statement:
                    continue
                ledger.exclude(EVERYTHING if name in _OF_ALL else table)
                self._execute(conn, name, statement)
                return

    def _execute(self, conn: psycopg.Connection[Any], name: str, statement: str) -> None:
        try:
            conn.execute(statement)
        except psycopg.Error as error:
            self._log(f"change failed: {statement}: {str(error).partition(chr(10))[0]}")
            self.done[f"{name} (failed)"] += 1
            return
        self._log(f"changed: {statement}")
        self.done[name] += 1

    def _choose(self, conn: psycopg.Connection[Any]) -> tuple[str, str, str]:
        kind = self._chance.choice(list(KINDS.values()))
        name = self._chance.choice(list(CHANGES))
        if self._chance.random() < 0.2:
            name = self._chance.choice(_SECRETIVE)
        if self._many and self._chance.random() < 0.2:
            kind, name = KINDS["crowd"], "column dropped"
        table = self._table(conn, kind)
        if not table.columns:
            again = f"{kind.create()} alter publication headwater add table {kind.name}"
            return "made", again, kind.name
        if not table.published and self._chance.random() < 0.5:
            name = "published"
        return name, CHANGES[name](self._chance, table), kind.name

    def _table(self, conn: psycopg.Connection[Any], kind: Kind) -> Table:
        columns = conn.execute(
            "select column_name, case data_type when 'USER-DEFINED' then udt_name else data_type end"
            " from information_schema.columns"
            " where table_schema = 'public' and table_name = %s",
            [kind.name],
        ).fetchall()
        published = conn.execute("select from pg_publication_tables where tablename = %s", [kind.name]).fetchall()
        return Table(kind, dict(columns), bool(published), conn.info.server_version, self._number)
