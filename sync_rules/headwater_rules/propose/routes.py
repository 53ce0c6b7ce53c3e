"""Whose a row is: the table of users, the columns that hold their ids, and how rows lead to the users who get them.

A row goes to the user it names. A row that names nobody goes where the row goes that it belongs to, and what people are
members of goes to its members. Nothing else leads anywhere: what is left is for the developer to decide.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headwater_rules.evaluate.limits import MOST_BUCKETS
from headwater_rules.propose.outline import (
    MEMBERSHIPS,
    OutlinedTable,
    Reference,
    is_number,
    is_one_of_several,
    is_secret,
    last_word,
    on_one_line,
    snake,
    without_id,
    words_of,
)

_SUPABASE = ("auth", "users")
_PEOPLE = ("user", "profile", "account", "customer", "person", "people", "member", "employee", "client", "staff")
"""The last words of tables of people, the likelier to be the users the first."""

_OWNERS = ("owner", "user", "author", "creator", "created_by", "uploaded_by", "uid")
"""What a column calls the user whose row it is, the likelier first. `reviewer_id`, `approved_by` or `blocked_user_id`
name somebody else, and are left to the developer."""

_NEVER_NAMES = frozenset({"uid", "owner", "created_by", "uploaded_by"})  # `author` alone is often a name
_CONTACTS = frozenset({"email", "email_address", "username", "login", "phone"})
_SUBJECT = re.compile(
    r"(auth0|firebase|clerk|cognito|keycloak|supabase|workos|auth|oidc)_(user_)?(id|uid|sub)|external_auth_id|subject"
)
_LOGIN = re.compile(
    rf"{_SUBJECT.pattern}|((hashed|encrypted)_)?(password|passwd|passwort|pwd)(_(hash|digest|salt))?"
    r"|last_(login|sign_in|signed_in|logged_in)(_at)?|sign_in_count"
)
_FURTHEST = 5  # tables between a row and its user; a longer way is hardly meant
_GONE = re.compile(r"(deleted|removed|left|revoked|banned|blocked|kicked|suspended|disabled|archived)_at")
_SINCE = frozenset({"created_at", "updated_at", "inserted_at", "joined_at"})


@dataclass(frozen=True, slots=True)
class People:
    """The table whose rows are the users, and its column that other tables refer to. `subject` is the column with what
    tokens call a user (`sub`): the same, unless there is one for an identity provider."""

    table: OutlinedTable
    key: str
    subject: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table that may be that of the users, and what speaks for it."""

    table: OutlinedTable
    signs: tuple[str, ...]

    def __str__(self) -> str:
        return f"{'.'.join(self.table.place)} ({', '.join(self.signs)})"


def candidates(tables: Sequence[OutlinedTable]) -> tuple[Candidate, ...]:
    """The tables that may have the users, the likeliest first. What people log in with counts most, then what the table
    is called: customers are often no users of the app."""
    referring = Counter(place for table in tables for place in {(r.schema, r.table) for r in table.references})
    found: list[tuple[tuple[int, ...], Candidate]] = []
    for table in tables:
        logins = [each.name for each in table.columns if _LOGIN.fullmatch(snake(each.name))]
        contacts = [each.name for each in table.columns if snake(each.name) in _CONTACTS]
        others, word = referring[table.place], last_word(table.name)
        log_in = bool(logins and contacts and others)
        named = word in _PEOPLE
        if len(words_of(table.name)) > 1:  # project_users joins two tables, auth_user does not
            named = named and bool(logins or contacts) and len(table.references) < 2
        if table.id_column is None or not (named or log_in):
            continue
        rank = (table.place != _SUPABASE, not log_in, _PEOPLE.index(word) if named else len(_PEOPLE), -others)
        signs = [f"has {each}" for each in (*logins[:2], *contacts[:1])]
        if others:
            signs.append(f"{others} {'table refers' if others == 1 else 'tables refer'} to it")
        found.append((rank, Candidate(table, tuple(signs) or ("by its name",))))
    return tuple(candidate for _, candidate in sorted(found, key=lambda each: each[0]))


def find_people(tables: Sequence[OutlinedTable], named: str | None = None) -> People | None:
    """The table called `named` (`users` or `app.users`), or the likeliest. None when there is none."""
    known = tables if named is not None else [each.table for each in candidates(tables)]
    found = next((each for each in known if named in {None, each.name, ".".join(each.place)}), None)
    if found is None or (key := found.id_column) is None:
        return None
    return People(found, key, next((c.name for c in found.columns if _SUBJECT.fullmatch(snake(c.name))), key))


class Identities:
    """Which columns hold a user's id: those that refer to the table of people, or to a table that has one row for each
    user under the same id, and without a foreign key those that are called like an owner."""

    def __init__(self, people: People | None, tables: Sequence[OutlinedTable]) -> None:
        self.people = people
        self._keys = set() if people is None else {(*people.table.place, people.key)}
        before = -1
        while before < len(self._keys):
            before = len(self._keys)
            same = [(t, t.key[0]) for t in tables if len(t.key) == 1]
            self._keys |= {(*t.place, key) for t, key in same if any(map(self.leads, _of_column(t, key)))}
        self._owners = [*dict.fromkeys("_".join(words_of(table)) for _, table, _ in sorted(self._keys)), *_OWNERS]

    def leads(self, reference: Reference) -> bool:
        return (reference.schema, reference.table, reference.target) in self._keys

    def is_one(self, table: OutlinedTable) -> bool:
        """Whether the table has one row for each user, under the user's id."""
        return any((*table.place, column) in self._keys for column in table.key or ("id",))

    def owner(self, table: OutlinedTable) -> str | None:
        """The column of the user whose row it is, if one is called so."""
        if self.is_one(table):
            return table.id_column or "id"
        named = [name for name in self.named(table) if self._holds_id(table, name)]
        return min(named, key=lambda name: self._owners.index(without_id(name)), default=None)

    def named(self, table: OutlinedTable) -> list[str]:
        """The columns that are called like an owner, whatever they hold."""
        return [column.name for column in table.columns if without_id(column.name) in self._owners]

    def _holds_id(self, table: OutlinedTable, column: str) -> bool:
        if references := _of_column(table, column):
            return any(map(self.leads, references))
        if is_one_of_several(table, column) or (snake(column) == without_id(column) and column not in _NEVER_NAMES):
            return False
        people = self.people
        return people is None or is_number(table, column) == is_number(people.table, people.key)


def _of_column(table: OutlinedTable, column: str) -> list[Reference]:
    return [each for each in table.references if each.column == column]


@dataclass(frozen=True, slots=True)
class Route:
    """One way: `column` holds a user's id, or a value of `select` in the rows of `table` that lead to the user
    by one of `routes`. `declared` is False where only names say so. `gone` are columns of `table` that are null while a
    row counts."""

    column: str
    declared: bool = True
    table: OutlinedTable | None = None
    select: str = ""
    routes: tuple[Route, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRoutes:
    """What is known of one table: the routes by which rows go to users, or those of which the developer has to decide,
    and `notes` that say why."""

    table: OutlinedTable
    routes: tuple[Route, ...] = ()
    further: tuple[Route, ...] = ()
    notes: tuple[str, ...] = ()


Found = Mapping[tuple[str, str], TableRoutes]


def find_routes(tables: Sequence[OutlinedTable], identities: Identities) -> Found:
    """What is known of each table, by schema and name."""
    memberships = _memberships(tables, identities)
    found = {table.place: _own_routes(table, identities, memberships) for table in tables}
    for _ in range(_FURTHEST):
        found |= {place: _reached(each, found, identities) for place, each in found.items() if _is_open(each)}
    return found


def _is_open(known: TableRoutes) -> bool:
    """Whether nothing is known of a table, not even what could lead to a user."""
    return not (known.routes or known.further or known.notes)


def _own_routes(
    table: OutlinedTable, identities: Identities, memberships: Mapping[tuple[str, str], Sequence[tuple[Route, str]]]
) -> TableRoutes:
    owner = identities.owner(table)
    members = memberships.get(table.place, ())
    own = () if owner is None else (_of_owner(table, owner),)
    routes = (*own, *(route for route, doubt in members if not doubt))
    notes = [doubt for _, doubt in members if doubt]
    if (key := table.id_column) is not None and is_secret(key):
        routes, notes = (), [f"its key {on_one_line(key)} looks secret, and devices would get it as id"]
    elif owner is None and (several := [each for each in identities.named(table) if is_one_of_several(table, each)]):
        beside = "may name others than users, as a type stands beside it"
        routes, notes = (), [f"{on_one_line(each)} {beside}" for each in several]
    further = () if routes else (*own, *(route for route, _ in members))
    return TableRoutes(table, routes, further, () if routes else tuple(notes))


def _of_owner(table: OutlinedTable, column: str) -> Route:
    reference = table.reference(column)
    return Route(column, declared=reference.declared if reference else (column,) == table.key)


def _reached(known: TableRoutes, found: Found, identities: Identities) -> TableRoutes:
    """With the way by what a table's rows belong to. Where several are possible, the developer says which is meant,
    unless one alone owns the row, or has a foreign key."""
    ways: dict[Route, Reference] = {}
    for each in known.table.references:
        parent = found.get((each.schema, each.table))
        if parent is None or not parent.routes or parent.table.place == known.table.place or identities.leads(each):
            continue
        if not parent.table.is_frameworks_own:
            ways.setdefault(_by_reference(each, parent), each)
    owning = [way for way, each in ways.items() if each.owning]
    declared = [way for way, each in ways.items() if each.declared]
    if only := next((each for each in ([*ways], owning, declared) if len(each) == 1), None):
        return replace(known, routes=tuple(only))
    if not ways:
        return known
    columns = ", ".join(on_one_line(way.column) for way in ways)
    return replace(known, further=tuple(ways), notes=(f"it may belong to what {columns} name: keep what is meant",))


def _by_reference(reference: Reference, parent: TableRoutes) -> Route:
    direct = parent.routes[0]
    if len(parent.routes) == 1 and direct.column == reference.target:  # what leads to the parent's id leads to ours
        return replace(direct, column=reference.column, declared=direct.declared and reference.declared)
    return Route(reference.column, reference.declared, parent.table, reference.target, parent.routes)


def _memberships(
    tables: Sequence[OutlinedTable], identities: Identities
) -> dict[tuple[str, str], list[tuple[Route, str]]]:
    """By table, the routes by way of tables that say who takes part in its rows, each with what makes it doubtful."""
    found: dict[tuple[str, str], list[tuple[Route, str]]] = {}
    for table in tables:
        owner = identities.owner(table)
        others = [each for each in table.references if each.column != owner and each.table != table.name]
        if owner is None or len(others) != 1 or identities.is_one(table) or identities.leads(others[0]):
            continue
        if table.is_frameworks_own or not _says_so(table, others[0], identities):
            continue
        own, joined = _of_owner(table, owner), others[0]
        gone, doubts = _while_member(table, {owner, joined.column})
        doubt = f"write which {', '.join(doubts)} of {table.shown} a member has" if doubts else ""
        declared = joined.declared and own.declared
        route = Route(joined.target, declared, table, joined.column, (own,), gone)
        found.setdefault((joined.schema, joined.table), []).append((route, doubt))
    return found


def _says_so(table: OutlinedTable, joined: Reference, identities: Identities) -> bool:
    """Whether the table's name says that it is one of memberships, and nothing else: `former_team_members` does not."""
    words = words_of(table.name)
    people = last_word(identities.people.table.name) if identities.people else "user"
    of = (words_of(joined.table), words_of(without_id(joined.column)))
    if words[-1] in MEMBERSHIPS:
        return words[:-1] in ([], *of)
    return any(words in ([*each, people], [people, *each]) for each in of)


def _while_member(table: OutlinedTable, known: set[str]) -> tuple[tuple[str, ...], list[str]]:
    """The columns that are null for members, and those that may say that a membership does not count (any more)."""
    others = [each for each in table.columns if each.name not in {*known, *table.key} and each.name != "id"]
    gone = [each for each in others if _GONE.fullmatch(snake(each.name)) and each.type.startswith("timestamp")]
    doubts = [each.name for each in others if each not in gone and snake(each.name) not in _SINCE]
    return tuple(each.name for each in gone), [*map(on_one_line, doubts)]


_MANY_EACH = MOST_BUCKETS // 20  # on average: some users have far more


@dataclass(frozen=True, slots=True)
class BucketExplosion:
    """A stream of `table` has a bucket for each row of `parents` that leads to a user: `rows` in all, `each` for a user
    on average, if the users are known."""

    table: OutlinedTable
    parents: OutlinedTable
    rows: int
    each: int | None

    def __str__(self) -> str:
        users = "" if self.each is None else f", {self.each:,} for a user on average"
        return (
            f"a bucket for each row of {self.parents.shown}, which has about {self.rows:,}{users}; a device may have"
            f" {MOST_BUCKETS:,} buckets"
        )

    @property
    def fix(self) -> str:
        """What to do about it."""
        return (
            f"give {self.table.shown} a column with the user, or with what few rows lead to, and select by that;"
            " or raise api.parameters.max_buckets_per_connection"
        )


def explosions(found: TableRoutes, people: People | None) -> list[BucketExplosion]:
    """The routes of a table by which a device would need too many buckets."""
    users = people.table.rows if people is not None else None
    crowded = []
    for parents in dict.fromkeys(route.table for route in found.routes if route.table is not None):
        rows = parents.rows or 0
        each = None if not users else rows // users
        if rows >= MOST_BUCKETS and (each is None or each >= _MANY_EACH):
            crowded.append(BucketExplosion(found.table, parents, rows, each))
    return crowded
