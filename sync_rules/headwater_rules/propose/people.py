"""Finds the table of people, and the columns that hold their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater_rules.propose.outline import OutlinedTable, Reference, is_number, is_one_of_several
from headwater_rules.propose.words import (
    LOGINS,
    OWNERS,
    PEOPLE,
    SUBJECTS,
    is_login,
    is_secret,
    last_word,
    plurals,
    singular,
    snake,
)

_SUPABASE = ("auth", "users")
_CONTACTS = frozenset({"email", "email_address", "username", "login", "phone"})


@dataclass(frozen=True, slots=True)
class People:
    """The table whose rows are the users, and its column that other tables refer to. `subject` is the column with what
    tokens call a user (`sub`): the same, unless there is one for an identity provider."""

    table: OutlinedTable
    key: str
    subject: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table that may be that of the users: how likely, compared with others, and what speaks for it."""

    table: OutlinedTable
    score: int
    signs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'.'.join(self.table.place)} ({', '.join(self.signs)})"


def candidates(tables: Sequence[OutlinedTable]) -> tuple[Candidate, ...]:
    """The tables that may have the users, the likeliest first."""
    found = [each for table in tables if (each := _candidate(table, tables)) is not None]
    return tuple(sorted(found, key=lambda each: -each.score))


def find_people(tables: Sequence[OutlinedTable], named: str | None = None) -> People | None:
    """The table called `named` (`users` or `app.users`), or the likeliest. None when there is none."""
    found: OutlinedTable | None
    if named is not None:
        found = next((table for table in tables if named in {table.name, f"{table.schema}.{table.name}"}), None)
    else:
        found = next((each.table for each in candidates(tables)), None)
    if found is None or (key := found.id_column) is None:
        return None
    return People(found, key, next((c.name for c in found.columns if snake(c.name) in SUBJECTS), key))


def _candidate(table: OutlinedTable, tables: Sequence[OutlinedTable]) -> Candidate | None:
    """What people log in with counts most, then what the table is called: customers are often no users of the app."""
    if table.id_column is None:
        return None
    words = snake(table.name).split("_")
    named = PEOPLE.get(singular(words[-1]), 0)
    columns = {snake(column.name): column.name for column in table.columns}
    logins = [shown for name, shown in columns.items() if is_login(name)]
    contacts = [shown for name, shown in columns.items() if name in _CONTACTS]
    secrets = any(map(is_secret, columns))
    declared = [each for each in table.references if each.declared]
    if not named and not (logins and contacts):
        return None
    if len(words) > 1 and table.place != _SUPABASE:
        # project_users joins two tables, auth_user does not
        if not (contacts or logins) or (len(declared) > 1 and not (logins and contacts)):
            return None
        named = max(named - 20, 0)
    referring = {t.name: t for t in tables for each in t.references if (each.schema, each.table) == table.place}
    sessions = [name for name in referring if last_word(name) in LOGINS]
    score = named + 80 * bool(logins) + 15 * bool(contacts) + 15 * secrets + 30 * bool(sessions)
    score += 2 * min(len(referring), 10) + 1000 * (table.place == _SUPABASE)
    signs = [*(f"has {each}" for each in (*logins[:2], *contacts[:1])), *(f"named by {each}" for each in sessions[:1])]
    if others := len(referring) - len(sessions[:1]):
        signs.append(f"{others} {'table refers' if others == 1 else 'tables refer'} to it")
    return Candidate(table, score, tuple(signs) or ("by its name",))


class Identities:
    """Which columns hold a user's id: those that refer to the table of people, or to a table that has one row for each
    user under the same id, and without a foreign key those that are called like an owner."""

    def __init__(self, people: People | None, tables: Sequence[OutlinedTable]) -> None:
        self.people = people
        self._keys: set[tuple[str, str, str]] = set()
        if people is not None:
            self._keys.add((*people.table.place, people.key))
        before = -1
        while before < len(self._keys):
            before = len(self._keys)
            self._keys |= {(*t.place, t.key[0]) for t in tables if len(t.key) == 1 and self._refers(t, t.key[0])}

    def _refers(self, table: OutlinedTable, column: str) -> bool:
        return any(self._leads(each) for each in table.references if each.column == column)

    def _leads(self, reference: Reference) -> bool:
        return (reference.schema, reference.table, reference.target) in self._keys

    def is_one(self, table: OutlinedTable) -> bool:
        """Whether the table has one row for each user, under the user's id."""
        return any((*table.place, column) in self._keys for column in table.key or ("id",))

    def columns(self, table: OutlinedTable) -> list[str]:
        """The columns of a table that hold a user's id, the likeliest owner first."""
        if self.is_one(table):
            return [table.id_column or "id"]
        found = [c.name for c in table.columns if self._refers(table, c.name) or self._called(table, c.name)]
        return sorted(dict.fromkeys(found), key=self._rank)

    def owner(self, table: OutlinedTable) -> str | None:
        """The column of the user whose row it is, if one is called so."""
        first = next(iter(self.columns(table)), None)
        return first if first is not None and (self.is_one(table) or self._named(first)) else None

    def owners_of_several_kinds(self, table: OutlinedTable) -> list[str]:
        """The columns that are called like an owner and may name something else than a user."""
        return [c.name for c in table.columns if self._named(c.name) and is_one_of_several(table, c.name)]

    def _named(self, column: str) -> bool:
        return self._rank(column) < len(self._owners())

    def _owners(self) -> list[str]:
        own = [] if self.people is None else [singular(snake(self.people.table.name))]
        return [*own, *OWNERS]

    def _rank(self, column: str) -> int:
        owners = self._owners()
        called = _without_id(column)
        return owners.index(called) if called in owners else len(owners)

    def _called(self, table: OutlinedTable, column: str) -> bool:
        """Whether a column without a reference is called like an owner, and can hold the id."""
        if table.reference(column) is not None or not self._named(column) or is_one_of_several(table, column):
            return False
        name, called = snake(column), _without_id(column)
        if name == called and name not in {"uid", "owner", "created_by", "uploaded_by", "posted_by"}:
            return False  # `customer` or `sender` alone is often a name
        if self.people is None:
            return True
        others = set().union(*(plurals(each) for each in PEOPLE)) - plurals(singular(snake(self.people.table.name)))
        fits = is_number(table, column) == is_number(self.people.table, self.people.key)
        return fits and (called not in others or called == "user")


def _without_id(column: str) -> str:
    name = snake(column)
    return next((name.removesuffix(end) for end in ("_id", "_uuid", "_fk") if name.endswith(end)), name)
