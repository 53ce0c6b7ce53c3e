"""Finds what a proposal divides into more buckets than a device can have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater_rules.evaluate.limits import MOST_BUCKETS
from headwater_rules.propose.outline import OutlinedTable
from headwater_rules.propose.people import People
from headwater_rules.propose.routes import Route

_MANY_EACH = MOST_BUCKETS // 20  # on average: some users have far more


@dataclass(frozen=True, slots=True)
class Crowd:
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


def crowds(table: OutlinedTable, routes: Sequence[Route], people: People | None) -> tuple[Crowd, ...]:
    """What is crowded among the routes of a table."""
    users = people.table.rows if people is not None else None
    found = []
    for parents in dict.fromkeys(route.table for route in routes if route.table is not None):
        rows = parents.rows or 0
        each = None if not users else rows // users
        if rows >= MOST_BUCKETS and (each is None or each >= _MANY_EACH):
            found.append(Crowd(table, parents, rows, each))
    return tuple(found)
