"""How rows lead to the user who may have them.

A row goes to the user it names. A row that names nobody goes where the row goes that it belongs to, and what people are
members of goes to its members. Nothing else leads anywhere: what is left is for the developer to decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headwater_rules.propose.outline import OutlinedTable, Reference
from headwater_rules.propose.people import Identities
from headwater_rules.propose.standing import doubts, standing
from headwater_rules.propose.words import (
    MEMBERSHIPS,
    NO_MEMBERS,
    REACTIONS,
    SIDE,
    is_frameworks_own,
    is_secret,
    last_word,
    words_of,
)

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
class Found:
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


def find_routes(tables: Sequence[OutlinedTable], identities: Identities) -> dict[tuple[str, str], Found]:
    """What is known of each table, by schema and name."""
    memberships = _memberships(tables, identities)
    found: dict[tuple[str, str], Found] = {}
    for table in tables:
        owner = identities.owner(table)
        own = () if owner is None else (_of_owner(table, owner),)
        members = memberships.get(table.place, ())
        joined = tuple(route for route in members if not route.doubt)
        doubtful = tuple(route for route in members if route.doubt)
        others = tuple(column for column in identities.columns(table) if column != owner)
        if notes := _notes(table, identities):
            found[table.place] = Found(table, further=(*own, *members), others=others, notes=notes)
        else:
            found[table.place] = Found(table, (*own, *joined), doubtful, others=others)
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


def _with_shared(known: Found, shared: Found) -> Found:
    if known.further or known.notes:
        return known
    return replace(known, shared=shared.routes or shared.further, notes=shared.notes)


def _spread(found: dict[tuple[str, str], Found]) -> dict[tuple[str, str], Found]:
    """Tables without a route get the shortest one by way of a table that has one."""
    for _ in range(_FURTHEST):
        below = {place: each for place, each in found.items() if each.is_open}
        reached = {place: ways for place, each in below.items() if (ways := _below(each, found))}
        found = found | {place: _reached(found[place], ways) for place, ways in reached.items()}
    return found


def _reached(known: Found, ways: Sequence[Route]) -> Found:
    if len(ways) == 1:
        return replace(known, routes=tuple(ways))
    columns = ", ".join(" ".join(way.column.split()) for way in ways)
    return replace(known, further=tuple(ways), notes=(f"it may belong to what {columns} name: keep what is meant",))


def _of_users(found: dict[tuple[str, str], Found], identities: Identities) -> dict[tuple[str, str], Found]:
    """With routes to what the users' own rows refer to."""
    spread = dict(found)
    for user in found.values():
        if not identities.is_one(user.table):
            continue
        for each in user.table.references:
            there = spread.get((each.schema, each.table))
            if there is not None and there.is_open and not is_frameworks_own(*there.table.place):
                way = Route(each.target, each.declared, user.table, each.column, user.routes)
                spread[there.table.place] = replace(there, routes=(way,))
    return spread


def _of_owner(table: OutlinedTable, column: str) -> Route:
    reference = table.reference(column)
    return Route(column, declared=reference.declared if reference else (column,) == table.key)


def _below(known: Found, found: Mapping[tuple[str, str], Found]) -> list[Route]:
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


def _by_reference(table: OutlinedTable, reference: Reference, found: Mapping[tuple[str, str], Found]) -> Route | None:
    parent = found.get((reference.schema, reference.table))
    if parent is None or parent.table.place == table.place or not parent.routes:
        return None
    if is_frameworks_own(*parent.table.place):
        return None
    direct = parent.routes[0] if len(parent.routes) == 1 else None
    if direct is not None and direct.column == reference.target:  # what leads to the parent's id leads to ours
        return replace(direct, column=reference.column, declared=direct.declared and reference.declared)
    return Route(reference.column, reference.declared, parent.table, reference.target, parent.routes)


def _further(known: Found, found: Mapping[tuple[str, str], Found]) -> list[Route]:
    """Ways that are not taken, as a row that names its user stays with that user."""
    ways = [_by_reference(known.table, each, found) for each in known.table.references]
    taken = {route.column for route in known.routes} | set(known.others)
    return [way for way in ways if way is not None and way.column not in taken and way.length <= _FURTHEST]


def _memberships(tables: Sequence[OutlinedTable], identities: Identities) -> dict[tuple[str, str], tuple[Route, ...]]:
    """By table, the routes by way of tables that say who takes part in its rows."""
    known = {table.place: table for table in tables}
    found: dict[tuple[str, str], tuple[Route, ...]] = {}
    named_by_others = {(each.schema, each.table) for table in tables for each in table.references}
    for table in tables:
        reference = _membership_of(table, identities, joins_only=table.place not in named_by_others)
        if reference is None or (joined := known.get((reference.schema, reference.table))) is None:
            continue
        if identities.is_one(joined):
            continue
        owner = identities.columns(table)[0]
        named = _says_so(table, reference, identities)
        if named or identities.owner(joined) is None:
            declared = reference.declared and _of_owner(table, owner).declared
            route = Route(
                reference.target, declared, table, reference.column, (_of_owner(table, owner),), standing(table),
                _doubt(table, named=named),
            )  # fmt: skip
            found[joined.place] = (*found.get(joined.place, ()), route)
    return found


def _doubt(table: OutlinedTable, *, named: bool) -> str:
    """Why a table of memberships may name users who are no members; empty when nothing speaks for it."""
    columns = [" ".join(each.split()) for each in doubts(table)]
    unsaid = "" if named else f"decide whether {table.shown} is a table of members: its name does not say so"
    unknown = f"write which {', '.join(columns)} of {table.shown} a member has" if columns else ""
    return "; ".join(each for each in (unsaid, unknown) if each)


def _membership_of(table: OutlinedTable, identities: Identities, *, joins_only: bool) -> Reference | None:
    """The reference to what the table's users take part in, if it is a table of memberships: by its name, or where it
    may be one that `joins_only`, by having nothing else."""
    owners = identities.columns(table)
    if len(owners) != 1 or identities.is_one(table) or is_frameworks_own(*table.place):
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
