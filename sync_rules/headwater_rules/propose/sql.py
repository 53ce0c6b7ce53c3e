"""Writes the queries of a proposal, and proposes what devices may write: rows that name their user, and what belongs to
those. Nothing that gives anybody a right, and nothing that only a server makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Final

from headwater_rules.propose.outline import OutlinedTable, Place, is_number, made_on_devices
from headwater_rules.propose.routes import Identities, People, Route, TableRoutes
from headwater_rules.propose.words import MEMBERSHIPS, PRIVILEGES, SERVERS_OWN, is_secret, last_word, snake
from headwater_rules.schema import ValueKind

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_REFUSED = re.compile(r"[^\w-]")  # in names of tables on a device

_RESERVED: Final = frozenset({
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "between",
    "binary", "both", "case", "cast", "check", "collate", "collation", "column", "concurrently", "constraint",
    "create", "cross", "current_catalog", "current_date", "current_role", "current_schema", "current_time",
    "current_timestamp", "current_user", "default", "deferrable", "desc", "distinct", "do", "else", "end",
    "except", "exists", "false", "fetch", "for", "foreign", "freeze", "from", "full", "grant", "group", "having",
    "ilike", "in", "initially", "inner", "intersect", "into", "is", "isnull", "join", "lateral", "leading",
    "left", "like", "limit", "localtime", "localtimestamp", "natural", "not", "notnull", "null", "offset", "on",
    "only", "or", "order", "outer", "overlaps", "placing", "primary", "references", "returning", "right", "row",
    "select", "session_user", "set", "similar", "some", "symmetric", "system_user", "table", "tablesample",
    "then", "to", "trailing", "true", "union", "unique", "user", "using", "values", "variadic", "verbose", "when",
    "where", "window", "with",
})  # fmt: skip


def identifier(name: str) -> str:
    """A name as SQL, in quotes where it needs them."""
    if _PLAIN.fullmatch(name) and name not in _RESERVED:
        return name
    return '"' + name.replace('"', '""') + '"'


def table_name(table: OutlinedTable) -> str:
    """A table as the rules name it: with its schema unless that is `public`, and with the tag of its database."""
    if not table.tag:
        return sql_name(table)
    return ".".join(map(identifier, table.place))


def sql_name(table: OutlinedTable) -> str:
    """A table as SQL in its database, with its schema unless that is `public`."""
    name = identifier(table.name)
    return name if table.schema == "public" else f"{identifier(table.schema)}.{name}"


def device_names(tables: Sequence[OutlinedTable]) -> dict[Place, str]:
    """What each table is called on a device: its own name, unless another has it or no SDK accepts it."""
    names: dict[Place, str] = {}
    taken: set[str] = set()
    for table in sorted(tables, key=lambda each: (bool(each.tag), each.schema != "public", each.place)):
        own = _REFUSED.sub("_", table.name)
        before = [part for part in (table.tag, table.schema) if part and (part != "public" or not table.tag)]
        longer = _REFUSED.sub("_", "_".join([*before, own]))
        candidates = chain((own, longer), (f"{longer}_{number}" for number in count(2)))
        name = next(each for each in candidates if each.lower() not in taken)
        taken.add(name.lower())
        names[table.place] = name
    return names


def select(table: OutlinedTable, name: str) -> str:
    """`SELECT … FROM …` of a table that is called `name` on a device: with an `id`, without what looks secret."""
    kept = [column.name for column in table.columns if not is_secret(column.name)]
    blobs = {column.name for column in table.columns if column.kind is ValueKind.BLOB}  # which devices never get
    columns = ["*"] if len(kept) == len(table.columns) else [identifier(each) for each in kept if each not in blobs]
    if table.column("id") is None:
        columns.append(f"{identifier(table.id_column) if table.id_column else 'row_id()'} AS id")
    called = "" if name == table.name else f" AS {identifier(name)}"
    return f"SELECT {', '.join(columns)} FROM {table_name(table)}{called}"


def conditions(people: People | None, table: OutlinedTable, routes: Sequence[Route]) -> list[str]:
    """One condition on the rows of a table for each route; a row passes if one is true."""
    return [_condition(people, table, route) for route in routes]


def _condition(people: People | None, table: OutlinedTable, route: Route) -> str:
    if route.table is None:
        if people is not None and table.place == people.table.place and route.column == people.key:
            return _equals_user(table, people.subject)
        return _is_user(people, table, route.column, _RULES)
    inner = conditions(people, route.table, route.routes)
    alternatives = " OR ".join(inner)
    if route.standing:
        alternatives = f"({alternatives})" if len(inner) > 1 else alternatives
    parts = [alternatives, *(test.format(identifier(column)) for column, test in route.standing)]
    rows = f"SELECT {identifier(route.select)} FROM {table_name(route.table)} WHERE {' AND '.join(parts)}"
    return f"{identifier(route.column)} IN ({rows})"


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How a condition names a table, and says that a column is the user."""

    table: Callable[[OutlinedTable], str]
    equals: Callable[[OutlinedTable, str], str]


def _is_user(people: People | None, table: OutlinedTable, column: str, dialect: _Dialect) -> str:
    """The condition that a column names the user, by way of the table of people where tokens call users otherwise."""
    if people is None or people.subject == people.key:
        return dialect.equals(table, column)
    rows = f"SELECT {identifier(people.key)} FROM {dialect.table(people.table)}"
    return f"{identifier(column)} IN ({rows} WHERE {dialect.equals(people.table, people.subject)})"


def _equals_user(table: OutlinedTable, column: str) -> str:
    """The token's user is text, so a number is compared as text."""
    name = identifier(column)
    return f"{f'CAST({name} AS TEXT)' if is_number(table, column) else name} = auth.user_id()"


def _equals_uploader(_: OutlinedTable, column: str) -> str:
    return f"{identifier(column)}::text = {_USER}"


_USER = "current_setting('request.jwt.claims', true)::json ->> 'sub'"
"""The user of an upload, in a policy."""

_RULES, _POLICY = _Dialect(table_name, _equals_user), _Dialect(sql_name, _equals_uploader)


@dataclass(frozen=True, slots=True)
class StreamTable:
    """A table that has a stream: what it is called on a device, and the column of the user whose row it is."""

    table: OutlinedTable
    name: str
    owner: str | None


@dataclass(frozen=True, slots=True)
class Writable:
    """A table that devices could write to, under `name`: these columns besides its key, these operations. `policy` is
    the condition that a row has to meet in Postgres."""

    table: OutlinedTable
    name: str
    columns: tuple[str, ...]
    operations: tuple[str, ...]
    policy: str


def owner_of(found: TableRoutes) -> str | None:
    """The column by which a row names its user."""
    return next((route.column for route in found.routes if route.table is None), None)


def writable(
    given: Sequence[TableRoutes],
    tables: Sequence[TableRoutes],
    identities: Identities,
    names: Mapping[Place, str],
) -> tuple[Writable, ...]:
    """What devices could write to among the `given` tables. `tables` are all of the app."""
    granting = {place for each in tables for place in _granting((*each.routes, *each.further))}
    cascading = {r.place for each in tables for r in each.table.references if r.owning}
    open_ = [each for each in given if each.table.place not in granting and _is_open(each.table, identities)]
    columns = {each.table.place: tuple(_columns(each.table)) for each in open_}
    operations = {
        each.table.place: tuple(_operations(each.table, columns[each.table.place], keeps=each.table.place in cascading))
        for each in open_
    }
    able = [each for each in open_ if operations[each.table.place]]
    owned = {each.table.place: each for each in able if owner_of(each) is not None}
    return tuple(
        Writable(each.table, names[place], columns[place], operations[place], policy)
        for each in able
        if (policy := _policy(each, owned, identities.people)) is not None
        for place in [each.table.place]
    )


def _granting(routes: Sequence[Route]) -> Iterator[Place]:
    """The tables whose rows give somebody the rows of another table, as memberships do."""
    for route in routes:
        if route.table is not None:
            if route.select != route.table.id_column:
                yield route.table.place
            yield from _granting(route.routes)


def _is_open(table: OutlinedTable, identities: Identities) -> bool:
    closed = last_word(table.name) in SERVERS_OWN | MEMBERSHIPS or identities.is_one(table) or "." in table.name
    return bool(table.key) and not closed


def _policy(found: TableRoutes, owned: Mapping[Place, TableRoutes], people: People | None) -> str | None:
    tag = found.table.tag
    if people is not None and people.subject != people.key and people.table.tag != tag:
        return None  # a policy reads no other database
    if (owner := owner_of(found)) is not None:
        return _is_user(people, found.table, owner, _POLICY)
    for route in found.routes:
        parent = owned.get(route.table.place) if route.table is not None and route.table.tag == tag else None
        if parent is not None and (owner := owner_of(parent)) is not None and route.select == parent.table.id_column:
            rows = f"SELECT {identifier(route.select)} FROM {sql_name(parent.table)}"
            condition = _is_user(people, parent.table, owner, _POLICY)
            return f"{identifier(route.column)} IN ({rows} WHERE {condition})"
    return None


def _columns(table: OutlinedTable) -> Iterator[str]:
    for column in table.columns:
        name = column.name
        closed = name in table.computed or name in table.key or is_secret(name) or snake(name) in PRIVILEGES
        if not closed and column.kind is not ValueKind.BLOB:
            yield name


def _operations(table: OutlinedTable, columns: Sequence[str], *, keeps: bool) -> Iterator[str]:
    """`keeps`: rows of other tables would be deleted with a row."""
    makes_id = len(table.key) > 1 or made_on_devices(table, table.key[0])
    if makes_id and table.required <= {*columns, *table.key}:
        yield "insert"
    if columns:
        yield "update"
    if not keeps:
        yield "delete"
