"""Proposes a sync config: each row to the user whose it is, nothing to everybody."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwater_rules.propose.outline import OutlinedTable, Place, with_references_by_name
from headwater_rules.propose.routes import (
    BucketExplosion,
    Candidate,
    Identities,
    People,
    Route,
    TableRoutes,
    candidates,
    crowds,
    find_people,
    find_routes,
)
from headwater_rules.propose.sql import StreamTable, Writable, conditions, device_names, owner_of, select, writable
from headwater_rules.propose.words import is_frameworks_own, is_secret

_WIDTH = 116
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_ONE_LINE = re.compile(r"[\w .,()*=]*")  # what a query may contain to stand beside its key


@dataclass(frozen=True, slots=True)
class Proposal:
    """A sync config as text, and what it is made of: the table of the users as `schema.name`, with the tag of its
    database before it (None: not found), the tables that have a stream, and those whose streams are commented out
    because nothing leads from them to a user. `crowded` are streams with more buckets than a device may have.
    `candidates` may have the users, the likeliest first; `users` is the one that was taken. `shown` are the tables that
    have a stream, `writable` those of them that devices could write to."""

    text: str
    people: str | None
    given: tuple[str, ...]
    undecided: tuple[str, ...]
    left_out: tuple[str, ...]
    crowded: tuple[BucketExplosion, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    users: People | None = None
    shown: tuple[StreamTable, ...] = ()
    writable: tuple[Writable, ...] = ()


def propose(tables: Sequence[OutlinedTable], people: str | None = None) -> Proposal:
    """A sync config for the tables of databases. `people` names the table of the users, if it is not to be guessed.

    No stream gives a row to anybody but its user, those who get the row that it belongs to, and the members of it. All
    other tables are listed as comments, for the developer to decide.
    """
    app = with_references_by_name(tuple(tables))
    found_people = find_people(app, people)
    identities = Identities(found_people, app)
    found = find_routes(app, identities)
    own = [each for each in found.values() if not is_frameworks_own(*each.table.own_place)]
    names = device_names([each.table for each in own])
    writer = _Writer(found_people, names)
    given = [each for each in own if each.routes]
    undecided = [each for each in own if not each.routes]
    left_out = [each.table for each in found.values() if is_frameworks_own(*each.table.own_place)]
    return Proposal(
        "\n".join(writer.lines(given, undecided, left_out)) + "\n",
        None if found_people is None else ".".join(found_people.table.place),
        tuple(".".join(each.table.place) for each in given),
        tuple(".".join(each.table.place) for each in undecided),
        tuple(".".join(each.place) for each in left_out),
        tuple(crowd for each in given for crowd in crowds(each.table, each.routes, found_people)),
        candidates(app),
        found_people,
        tuple(StreamTable(each.table, names[each.table.place], owner_of(each)) for each in given),
        writable(given, own, identities, names),
    )


class _Writer:
    """Writes the YAML. What can be made valid again by taking `#` away begins with it in the first column."""

    def __init__(self, people: People | None, names: dict[Place, str]) -> None:
        self._people = people
        self._names = names

    def lines(
        self, given: Sequence[TableRoutes], undecided: Sequence[TableRoutes], left_out: Sequence[OutlinedTable]
    ) -> Iterator[str]:
        yield from _comment(
            "Proposed from the names of tables and columns, and from foreign keys. Read it: it decides who gets which"
            " rows. `headwater rules explain` says it in words, `headwater rules preview --user ID` shows the rows.",
        )
        yield from _comment(self._who())
        yield "config:"
        yield "  edition: 3"
        yield ""
        if not given:
            yield from _comment("Nothing here leads to a user, so nobody gets anything until you write a stream.")
        yield "streams:" if given else "streams: {}"
        for each in given:
            yield from _comment(self._why(each), "  ")
            yield from self._stream(each.table, conditions(self._people, each.table, each.routes))
            yield ""
        if undecided:
            yield from self._undecided(undecided, following=bool(given))
        if left_out:
            names = ", ".join(table.shown for table in left_out)
            yield from _comment(f"Left out, as tables of frameworks and tools: {names}.")

    def _who(self) -> str:
        if self._people is None:
            return "No table of users was found: whoever a column such as user_id names is the user of a token (`sub`)."
        table, subject = self._people.table.shown, " ".join(self._people.subject.split())
        return (
            f"A user is a row of {table}: the `sub` of a token is its {subject}. If your tokens say something else,"
            " change auth.user_id() below."
        )

    def _why(self, found: TableRoutes) -> str:
        text = " ".join(dict.fromkeys(_reason(found.table, route) for route in found.routes))
        if secret := [" ".join(c.name.split()) for c in found.table.columns if is_secret(c.name)]:
            text += f" Without {', '.join(secret)}; new columns have to be added here."
        for way in found.further:
            (condition,) = conditions(self._people, found.table, [way])
            short = len(condition) <= 3 * _WIDTH
            text += (
                f" To give them to more people: OR {condition}." if short else f" By {way.column} more could get them."
            )
            text += f" But {way.doubt}." if way.doubt else ""
        if found.others:
            names = ", ".join(" ".join(each.split()) for each in found.others)
            text += f" Users in {names} get nothing by it."
        for crowd in crowds(found.table, found.routes, self._people):
            text += f" CAUTION: {crowd}: {crowd.fix}."
        if not found.table.key:
            text += " No primary key: Postgres refuses updates and deletes of published rows without one."
        return text

    def _stream(self, table: OutlinedTable, alternatives: Sequence[str]) -> Iterator[str]:
        name = self._names[table.place]
        yield f"  {name if _PLAIN_KEY.fullmatch(name) else json.dumps(name)}:"
        yield "    auto_subscribe: true"
        query = select(table, name)
        whole = f"{query} WHERE {' OR '.join(alternatives)}" if alternatives else query
        if len(whole) <= _WIDTH - 11 and _ONE_LINE.fullmatch(whole):
            yield f"    query: {whole}"
            return
        yield "    query: >"
        yield from [f"      {query}"] if '"' in query else _wrapped(query, " " * 6)
        for number, condition in enumerate(alternatives):
            text = f"{'OR' if number else 'WHERE'} {condition}"
            yield from [f"      {text}"] if '"' in text else _wrapped(text, " " * 6)

    def _undecided(self, tables: Sequence[TableRoutes], *, following: bool) -> Iterator[str]:
        yield from _comment(
            "Nothing leads from these tables to one user. Without a WHERE every user would get all their rows: take the"
            " # away where that is meant, or write who gets them"
            + ("." if following else ", and `streams:` instead of `streams: {}`.")
        )
        for each in tables:
            notes = [*each.notes, *(way.doubt for way in each.further if way.doubt)]
            if each.others:
                notes.append(f"users in {', '.join(' '.join(name.split()) for name in each.others)}")
            if not each.table.key:
                notes.append("no primary key")
            if each.shared:
                notes = [*notes, "as it stands here, for users whose own row leads to it"]
            alternatives = conditions(self._people, each.table, (*each.further, *each.shared))
            if notes:
                yield from _comment(f"{each.table.shown}: {'; '.join(notes)}")
            yield from (f"#{line}" for line in self._stream(each.table, alternatives))
        yield ""


def _comment(text: str, indent: str = "") -> Iterator[str]:
    yield from _wrapped(text, f"{indent}# ")


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _reason(table: OutlinedTable, route: Route) -> str:
    sure = "" if route.declared else " (by its name: there is no foreign key)"
    column = " ".join(route.column.split())
    if route.table is None:
        if table.key == (route.column,) or (not table.key and route.column == "id"):
            return f"{table.shown}: a user's own row."
        return f"{table.shown}: the rows of a user, by {column}{sure}."
    if route.routes and all(each.table is None for each in route.routes) and route.select != route.table.id_column:
        return f"{table.shown}: for those in {route.table.shown}, by {column}{sure}."
    return f"{table.shown}: for those who get the {route.table.shown} that it belongs to, by {column}{sure}."
