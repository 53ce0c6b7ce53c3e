"""Proposes what devices may write: rows that name their user, and what belongs to those. Nothing that gives anybody a
right, and nothing that only a server makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headwater_rules.propose.outline import OutlinedTable, made_on_devices
from headwater_rules.propose.people import Identities, People
from headwater_rules.propose.routes import Found, Route
from headwater_rules.propose.sql import identifier, table_name
from headwater_rules.propose.words import MEMBERSHIPS, PRIVILEGES, SERVERS_OWN, is_secret, last_word, snake
from headwater_rules.schema import ValueKind

_USER = "current_setting('request.jwt.claims', true)::json ->> 'sub'"
"""The user of an upload, in a policy."""


@dataclass(frozen=True, slots=True)
class Shown:
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


def owner_of(found: Found) -> str | None:
    """The column by which a row names its user."""
    return next((route.column for route in found.routes if route.table is None), None)


def writable(
    given: Sequence[Found], tables: Sequence[Found], identities: Identities, names: Mapping[tuple[str, str], str]
) -> tuple[Writable, ...]:
    """What devices could write to among the `given` tables. `tables` are all of the app."""
    granting = {place for each in tables for place in _granting((*each.routes, *each.further))}
    cascading = {(r.schema, r.table) for each in tables for r in each.table.references if r.owning}
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


def _granting(routes: Sequence[Route]) -> Iterator[tuple[str, str]]:
    """The tables whose rows give somebody the rows of another table, as memberships do."""
    for route in routes:
        if route.table is not None:
            if route.select != route.table.id_column:
                yield route.table.place
            yield from _granting(route.routes)


def _is_open(table: OutlinedTable, identities: Identities) -> bool:
    closed = last_word(table.name) in SERVERS_OWN | MEMBERSHIPS or identities.is_one(table) or "." in table.name
    return bool(table.key) and not closed


def _policy(found: Found, owned: Mapping[tuple[str, str], Found], people: People | None) -> str | None:
    if (owner := owner_of(found)) is not None:
        return _is_user(owner, people)
    for route in found.routes:
        parent = owned.get(route.table.place) if route.table is not None else None
        if parent is not None and (owner := owner_of(parent)) is not None and route.select == parent.table.id_column:
            rows = f"SELECT {identifier(route.select)} FROM {table_name(parent.table)}"
            return f"{identifier(route.column)} IN ({rows} WHERE {_is_user(owner, people)})"
    return None


def _is_user(column: str, people: People | None) -> str:
    if people is None or people.subject == people.key:
        return f"{identifier(column)}::text = {_USER}"
    rows = f"SELECT {identifier(people.key)} FROM {table_name(people.table)}"
    return f"{identifier(column)} IN ({rows} WHERE {identifier(people.subject)}::text = {_USER})"


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
