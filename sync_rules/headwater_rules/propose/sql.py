"""Writes the queries of a proposal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import chain, count
from typing import Final

from headwater_rules.propose.outline import OutlinedTable, is_number
from headwater_rules.propose.people import People
from headwater_rules.propose.routes import Route
from headwater_rules.propose.words import is_secret
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
    """A table as SQL, with its schema unless that is `public`."""
    name = identifier(table.name)
    return name if table.schema == "public" else f"{identifier(table.schema)}.{name}"


def device_names(tables: Sequence[OutlinedTable]) -> dict[tuple[str, str], str]:
    """What each table is called on a device: its own name, unless another has it or no SDK accepts it."""
    names: dict[tuple[str, str], str] = {}
    taken: set[str] = set()
    for table in sorted(tables, key=lambda each: (each.schema != "public", each.place)):
        own = _REFUSED.sub("_", table.name)
        longer = _REFUSED.sub("_", f"{table.schema}_{own}")
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


class Conditions:
    """Writes routes as conditions on the rows of a table."""

    def __init__(self, people: People | None, tables: Mapping[tuple[str, str], OutlinedTable]) -> None:
        self._people = people
        self._tables = tables

    def any_of(self, table: OutlinedTable, routes: Sequence[Route]) -> list[str]:
        """One condition for each route; a row passes if one is true."""
        return [self._of(table, route) for route in routes]

    def _of(self, table: OutlinedTable, route: Route) -> str:
        if route.table is None:
            return self._is_user(table, route.column)
        inner = self.any_of(route.table, route.routes)
        alternatives = " OR ".join(inner)
        if route.standing:
            alternatives = f"({alternatives})" if len(inner) > 1 else alternatives
        parts = [alternatives, *(test.format(identifier(column)) for column, test in route.standing)]
        rows = f"SELECT {identifier(route.select)} FROM {table_name(route.table)} WHERE {' AND '.join(parts)}"
        return f"{identifier(route.column)} IN ({rows})"

    def _is_user(self, table: OutlinedTable, column: str) -> str:
        people = self._people
        if people is None or people.subject == people.key:
            return _equals_user(table, column)
        if table.place == people.table.place and column == people.key:
            return _equals_user(table, people.subject)
        who = _equals_user(people.table, people.subject)
        ids = f"SELECT {identifier(people.key)} FROM {table_name(people.table)} WHERE {who}"
        return f"{identifier(column)} IN ({ids})"


def _equals_user(table: OutlinedTable, column: str) -> str:
    """The token's user is text, so a number is compared as text."""
    name = identifier(column)
    return f"{f'CAST({name} AS TEXT)' if is_number(table, column) else name} = auth.user_id()"
