"""Proposes a sync config: each row to the user whose it is, nothing to everybody."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwater_rules.propose.outline import OutlinedTable, is_secret, on_one_line, with_references_by_name
from headwater_rules.propose.routes import (
    BucketExplosion,
    Candidate,
    Identities,
    People,
    Route,
    TableRoutes,
    candidates,
    explosions,
    find_people,
    find_routes,
)
from headwater_rules.propose.sql import StreamTable, Writable, condition, device_names, owner_of, select, writable

_WIDTH = 116
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_ONE_LINE = re.compile(r"[\w .,()*=]*")  # what a query may contain to stand beside its key


@dataclass(frozen=True, slots=True)
class Proposal:
    """A sync config as text, and what it is made of: the tables that have a stream, those whose streams are commented
    out because nothing leads from them to a user, and those of frameworks. `crowded` are streams with more buckets than
    a device may have. `candidates` may have the users, the likeliest first; `users` is the one that was taken. `shown`
    are the tables that have a stream, `writable` those of them that devices could write to."""

    text: str
    given: tuple[str, ...]
    undecided: tuple[str, ...]
    left_out: tuple[str, ...]
    crowded: tuple[BucketExplosion, ...]
    candidates: tuple[Candidate, ...]
    users: People | None
    shown: tuple[StreamTable, ...]
    writable: tuple[Writable, ...]

    @property
    def people(self) -> str | None:
        """The table of the users, as `schema.name`."""
        return None if self.users is None else ".".join(self.users.table.place)


def propose(tables: Sequence[OutlinedTable], people: str | None = None) -> Proposal:
    """A sync config for the tables of a database. `people` names the table of the users, if it is not to be guessed.

    No stream gives a row to anybody but its user, those who get the row that it belongs to, and the members of it. All
    other tables are listed as comments, for the developer to decide.
    """
    app = with_references_by_name(tuple(tables))
    users = find_people(app, people)
    identities = Identities(users, app)
    found = find_routes(app, identities)
    own = [each for each in found.values() if not each.table.is_frameworks_own]
    left_out = [each.table for each in found.values() if each.table.is_frameworks_own]
    names = device_names([each.table for each in own])
    given = [each for each in own if each.routes]
    undecided = [each for each in own if not each.routes]
    return Proposal(
        "\n".join(_Writer(users, names).lines(given, undecided, left_out)) + "\n",
        tuple(".".join(each.table.place) for each in given),
        tuple(".".join(each.table.place) for each in undecided),
        tuple(".".join(each.place) for each in left_out),
        tuple(each for routes in given for each in explosions(routes, users)),
        candidates(app),
        users,
        tuple(StreamTable(each.table, names[each.table.place], owner_of(each)) for each in given),
        writable(given, own, identities, names),
    )


class _Writer:
    """Writes the YAML. What can be made valid again by taking `#` away begins with it in the first column."""

    def __init__(self, people: People | None, names: dict[tuple[str, str], str]) -> None:
        self._people = people
        self._names = names

    def lines(
        self, given: Sequence[TableRoutes], undecided: Sequence[TableRoutes], left_out: Sequence[OutlinedTable]
    ) -> Iterator[str]:
        yield from _wrapped(
            "Proposed from the names of tables and columns, and from foreign keys. Read it: it decides who gets which"
            " rows. `headwater rules explain` says it in words, `headwater rules preview --user ID` shows the rows."
        )
        yield from _wrapped(self._who())
        yield "config:"
        yield "  edition: 3"
        yield ""
        if not given:
            yield from _wrapped("Nothing here leads to a user, so nobody gets anything until you write a stream.")
        yield "streams:" if given else "streams: {}"
        for each in given:
            yield from _wrapped(self._why(each), "  # ")
            yield from self._stream(each.table, each.routes)
            yield ""
        if undecided:
            yield from _wrapped(
                "Nothing leads from these tables to one user. Without a WHERE every user would get all their rows: take"
                " the # away where that is meant, or write who gets them"
                + ("." if given else ", and `streams:` instead of `streams: {}`.")
            )
            for each in undecided:
                if notes := [*each.notes, *([] if each.table.key else ["no primary key"])]:
                    yield from _wrapped(f"{each.table.shown}: {'; '.join(notes)}")
                yield from (f"#{line}" for line in self._stream(each.table, each.further))
            yield ""
        if left_out:
            names = ", ".join(table.shown for table in left_out)
            yield from _wrapped(f"Left out, as tables of frameworks and tools: {names}.")

    def _who(self) -> str:
        if self._people is None:
            return "No table of users was found: whoever a column such as user_id names is the user of a token (`sub`)."
        return (
            f"A user is a row of {self._people.table.shown}: the `sub` of a token is its"
            f" {on_one_line(self._people.subject)}. If your tokens say something else, change auth.user_id() below."
        )

    def _why(self, found: TableRoutes) -> str:
        text = " ".join(dict.fromkeys(_reason(found.table, route) for route in found.routes))
        if secret := [on_one_line(each.name) for each in found.table.columns if is_secret(each.name)]:
            text += f" Without {', '.join(secret)}; new columns have to be added here."
        for crowd in explosions(found, self._people):
            text += f" CAUTION: {crowd}: {crowd.fix}."
        if not found.table.key:
            text += " No primary key: Postgres refuses updates and deletes of published rows without one."
        return text

    def _stream(self, table: OutlinedTable, routes: Sequence[Route]) -> Iterator[str]:
        name = self._names[table.place]
        yield f"  {name if _PLAIN_KEY.fullmatch(name) else json.dumps(name)}:"
        yield "    auto_subscribe: true"
        conditions = [condition(self._people, table, route) for route in routes]
        parts = [select(table, name), *(f"{'OR' if n else 'WHERE'} {each}" for n, each in enumerate(conditions))]
        whole = " ".join(parts)
        if len(whole) <= _WIDTH - 11 and _ONE_LINE.fullmatch(whole):
            yield f"    query: {whole}"
            return
        yield "    query: >"
        for part in parts:
            yield from [f"      {part}"] if '"' in part else _wrapped(part, " " * 6)


def _wrapped(text: str, indent: str = "# ") -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _reason(table: OutlinedTable, route: Route) -> str:
    by = f"by {on_one_line(route.column)}{'' if route.declared else ' (by its name: there is no foreign key)'}"
    if route.table is None:
        if table.key == (route.column,) or (not table.key and route.column == "id"):
            return f"{table.shown}: a user's own row."
        return f"{table.shown}: the rows of a user, {by}."
    if route.routes and all(each.table is None for each in route.routes) and route.select != route.table.id_column:
        return f"{table.shown}: for those in {route.table.shown}, {by}."
    return f"{table.shown}: for those who get the {route.table.shown} that it belongs to, {by}."
