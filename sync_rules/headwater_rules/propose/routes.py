"""Whose a row is: the table of people, the columns that hold their ids, and how rows lead to the users who get them.

A row goes to the user it names. A row that names nobody goes where the row goes that it belongs to, and what people are
members of goes to its members. Nothing else leads anywhere: what is left is for the developer to decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headwater_rules.evaluate.limits import MOST_BUCKETS
from headwater_rules.propose.outline import OutlinedTable, Place, Reference, is_number, is_one_of_several
from headwater_rules.propose.words import (
    LOGINS,
    MEMBERSHIPS,
    NO_MEMBERS,
    OWNERS,
    PEOPLE,
    REACTIONS,
    SIDE,
    SUBJECTS,
    doubts,
    is_frameworks_own,
    is_login,
    is_secret,
    last_word,
    plurals,
    singular,
    snake,
    standing,
    words_of,
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
        found = next((table for table in tables if named in _names(table)), None)
    else:
        found = next((each.table for each in candidates(tables)), None)
    if found is None or (key := found.id_column) is None:
        return None
    return People(found, key, next((c.name for c in found.columns if snake(c.name) in SUBJECTS), key))


def _names(table: OutlinedTable) -> set[str]:
    return {table.name, ".".join(table.own_place), ".".join(table.place)}


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
    if len(words) > 1 and table.own_place != _SUPABASE:
        # project_users joins two tables, auth_user does not
        if not (contacts or logins) or (len(declared) > 1 and not (logins and contacts)):
            return None
        named = max(named - 20, 0)
    referring = {t.name: t for t in tables for each in t.references if each.place == table.place}
    sessions = [name for name in referring if last_word(name) in LOGINS]
    score = named + 80 * bool(logins) + 15 * bool(contacts) + 15 * secrets + 30 * bool(sessions)
    score += 2 * min(len(referring), 10) + 1000 * (table.own_place == _SUPABASE)
    signs = [*(f"has {each}" for each in (*logins[:2], *contacts[:1])), *(f"named by {each}" for each in sessions[:1])]
    if others := len(referring) - len(sessions[:1]):
        signs.append(f"{others} {'table refers' if others == 1 else 'tables refer'} to it")
    return Candidate(table, score, tuple(signs) or ("by its name",))


class Identities:
    """Which columns hold a user's id: those that refer to the table of people, or to a table that has one row for each
    user under the same id, and without a foreign key those that are called like an owner."""

    def __init__(self, people: People | None, tables: Sequence[OutlinedTable]) -> None:
        self.people = people
        self._keys: set[Place] = set()
        if people is not None:
            self._keys.add((*people.table.place, people.key))
        before = -1
        while before < len(self._keys):
            before = len(self._keys)
            self._keys |= {(*t.place, t.key[0]) for t in tables if len(t.key) == 1 and self._refers(t, t.key[0])}

    def _refers(self, table: OutlinedTable, column: str) -> bool:
        return any(self._leads(each) for each in table.references if each.column == column)

    def _leads(self, reference: Reference) -> bool:
        return (*reference.place, reference.target) in self._keys

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


_FURTHEST = 5  # tables between a row and its user; a longer way is hardly meant


@dataclass(frozen=True, slots=True)
class Route:
    """One way: `column` holds a user's id, or a value of `select` in the rows of `table` that lead to the user
    by one of `routes`. `declared` is False where only names say so. `standing` are columns of `table`, each with the
    test that a row passes while it counts. With a `doubt`, the developer decides whether it is taken."""

    column: str
    declared: bool = True
    table: OutlinedTable | None = None
    select: str = ""
    routes: tuple[Route, ...] = ()
    standing: tuple[tuple[str, str], ...] = ()
    doubt: str = ""

    @property
    def length(self) -> int:
        return 1 + max((each.length for each in self.routes), default=0)


@dataclass(frozen=True, slots=True)
class TableRoutes:
    """What is known of one table: the routes by which rows go to users, those that could be added, those by way of
    what users share by their own row, such as `users.organization_id`, and further columns that name users. `notes`
    say why a table that could have routes has none."""

    table: OutlinedTable
    routes: tuple[Route, ...] = ()
    further: tuple[Route, ...] = ()
    shared: tuple[Route, ...] = ()
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether nothing is known of it, not even what could lead to a user."""
        return not (self.routes or self.further or self.notes)


def find_routes(tables: Sequence[OutlinedTable], identities: Identities) -> dict[Place, TableRoutes]:
    """What is known of each table, by schema and name."""
    memberships = _memberships(tables, identities)
    found: dict[Place, TableRoutes] = {}
    for table in tables:
        owner = identities.owner(table)
        own = () if owner is None else (_of_owner(table, owner),)
        members = memberships.get(table.place, ())
        joined = tuple(route for route in members if not route.doubt)
        doubtful = tuple(route for route in members if route.doubt)
        others = tuple(column for column in identities.columns(table) if column != owner)
        if notes := _notes(table, identities):
            found[table.place] = TableRoutes(table, further=(*own, *members), others=others, notes=notes)
        else:
            found[table.place] = TableRoutes(table, (*own, *joined), doubtful, others=others)
    found = _spread(found)
    shared = _spread(_of_users(found, identities))
    return {
        place: replace(each, further=(*each.further, *_further(each, found)))
        if each.routes
        else _with_shared(each, shared[place])
        for place, each in found.items()
    }


def _notes(table: OutlinedTable, identities: Identities) -> tuple[str, ...]:
    """Why the rows of a table go to nobody, whatever seems to lead to a user."""
    several = [] if identities.owner(table) is not None else identities.owners_of_several_kinds(table)
    if (key := table.id_column) is not None and is_secret(key):
        return (f"its key {' '.join(key.split())} looks secret, and devices would get it as id",)
    return tuple(f"{' '.join(each.split())} may name others than users, as a type stands beside it" for each in several)


def _with_shared(known: TableRoutes, shared: TableRoutes) -> TableRoutes:
    if known.further or known.notes:
        return known
    return replace(known, shared=shared.routes or shared.further, notes=shared.notes)


def _spread(found: dict[Place, TableRoutes]) -> dict[Place, TableRoutes]:
    """Tables without a route get the shortest one by way of a table that has one."""
    for _ in range(_FURTHEST):
        below = {place: each for place, each in found.items() if each.is_open}
        reached = {place: ways for place, each in below.items() if (ways := _below(each, found))}
        found = found | {place: _reached(found[place], ways) for place, ways in reached.items()}
    return found


def _reached(known: TableRoutes, ways: Sequence[Route]) -> TableRoutes:
    if len(ways) == 1:
        return replace(known, routes=tuple(ways))
    columns = ", ".join(" ".join(way.column.split()) for way in ways)
    return replace(known, further=tuple(ways), notes=(f"it may belong to what {columns} name: keep what is meant",))


def _of_users(found: dict[Place, TableRoutes], identities: Identities) -> dict[Place, TableRoutes]:
    """With routes to what the users' own rows refer to."""
    spread = dict(found)
    for user in found.values():
        if not identities.is_one(user.table):
            continue
        for each in user.table.references:
            there = spread.get(each.place)
            if there is not None and there.is_open and not is_frameworks_own(*there.table.own_place):
                way = Route(each.target, each.declared, user.table, each.column, user.routes)
                spread[there.table.place] = replace(there, routes=(way,))
    return spread


def _of_owner(table: OutlinedTable, column: str) -> Route:
    reference = table.reference(column)
    return Route(column, declared=reference.declared if reference else (column,) == table.key)


def _below(known: TableRoutes, found: Mapping[Place, TableRoutes]) -> list[Route]:
    """The shortest way by way of a table that has one; several if nothing says which of them is meant. A column that
    names a user who is not the owner is none."""
    ways: dict[Route, Reference] = {}
    for each in known.table.references:
        way = None if each.column in known.others else _by_reference(known.table, each, found)
        if way is not None:
            ways.setdefault(way, each)
    least = min(((way.length, not way.declared) for way in ways), default=None)
    shortest = [way for way in ways if (way.length, not way.declared) == least]
    owning = [way for way in shortest if ways[way].owning]
    return owning if len(owning) == 1 else shortest


def _by_reference(table: OutlinedTable, reference: Reference, found: Mapping[Place, TableRoutes]) -> Route | None:
    parent = found.get(reference.place)
    if parent is None or parent.table.place == table.place or not parent.routes:
        return None
    if is_frameworks_own(*parent.table.own_place):
        return None
    direct = parent.routes[0] if len(parent.routes) == 1 else None
    if direct is not None and direct.column == reference.target:  # what leads to the parent's id leads to ours
        return replace(direct, column=reference.column, declared=direct.declared and reference.declared)
    return Route(reference.column, reference.declared, parent.table, reference.target, parent.routes)


def _further(known: TableRoutes, found: Mapping[Place, TableRoutes]) -> list[Route]:
    """Ways that are not taken, as a row that names its user stays with that user."""
    ways = [_by_reference(known.table, each, found) for each in known.table.references]
    taken = {route.column for route in known.routes} | set(known.others)
    return [way for way in ways if way is not None and way.column not in taken and way.length <= _FURTHEST]


def _memberships(tables: Sequence[OutlinedTable], identities: Identities) -> dict[Place, tuple[Route, ...]]:
    """By table, the routes by way of tables that say who takes part in its rows."""
    known = {table.place: table for table in tables}
    found: dict[Place, tuple[Route, ...]] = {}
    named_by_others = {each.place for table in tables for each in table.references}
    for table in tables:
        reference = _membership_of(table, identities, joins_only=table.place not in named_by_others)
        if reference is None or (joined := known.get(reference.place)) is None:
            continue
        if identities.is_one(joined):
            continue
        owner = identities.columns(table)[0]
        named = _says_so(table, reference, identities)
        if named or identities.owner(joined) is None:
            declared = reference.declared and _of_owner(table, owner).declared
            direct, doubt = (_of_owner(table, owner),), _doubt(table, named=named)
            route = Route(
                reference.target, declared, table, reference.column, direct, standing(table.columns), doubt
            )  # fmt: skip
            found[joined.place] = (*found.get(joined.place, ()), route)
    return found


def _doubt(table: OutlinedTable, *, named: bool) -> str:
    """Why a table of memberships may name users who are no members; empty when nothing speaks for it."""
    columns = [" ".join(each.split()) for each in doubts(table.columns)]
    unsaid = "" if named else f"decide whether {table.shown} is a table of members: its name does not say so"
    unknown = f"write which {', '.join(columns)} of {table.shown} a member has" if columns else ""
    return "; ".join(each for each in (unsaid, unknown) if each)


def _membership_of(table: OutlinedTable, identities: Identities, *, joins_only: bool) -> Reference | None:
    """The reference to what the table's users take part in, if it is a table of memberships: by its name, or where it
    may be one that `joins_only`, by having nothing else."""
    owners = identities.columns(table)
    if len(owners) != 1 or identities.is_one(table) or is_frameworks_own(*table.own_place):
        return None
    if not NO_MEMBERS.isdisjoint(words_of(table.name)):
        return None
    others = [
        each
        for each in table.references
        if each.column != owners[0] and last_word(each.table) not in SIDE and each.table != table.name
    ]
    if len(others) != 1 or last_word(table.name) in REACTIONS or is_frameworks_own(others[0].schema, others[0].table):
        return None
    alone = len(table.columns) <= 3 or set(table.key) == {owners[0], others[0].column}
    joins = joins_only and alone and identities.owner(table) is not None
    return others[0] if joins or _says_so(table, others[0], identities) else None


def _says_so(table: OutlinedTable, reference: Reference, identities: Identities) -> bool:
    """Whether the table's name says that it is one of memberships."""
    if last_word(table.name) in MEMBERSHIPS:
        return True
    joined = last_word(reference.table)
    people = last_word(identities.people.table.name) if identities.people else "user"
    words = words_of(table.name)
    return len(words) >= 2 and {joined, people} <= {*words[-2:]}


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


def crowds(table: OutlinedTable, routes: Sequence[Route], people: People | None) -> tuple[BucketExplosion, ...]:
    """What is crowded among the routes of a table."""
    users = people.table.rows if people is not None else None
    found = []
    for parents in dict.fromkeys(route.table for route in routes if route.table is not None):
        rows = parents.rows or 0
        each = None if not users else rows // users
        if rows >= MOST_BUCKETS and (each is None or each >= _MANY_EACH):
            found.append(BucketExplosion(table, parents, rows, each))
    return tuple(found)
