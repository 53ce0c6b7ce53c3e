"""Which memberships count: columns that say since when and until when, and those of which only a developer knows."""

from __future__ import annotations

from typing import Final

from headwater_rules.propose.outline import OutlinedTable
from headwater_rules.propose.words import snake
from headwater_rules.schema import SourceColumn

_WHILE_TRUE: Final = frozenset({"active", "accepted", "approved", "confirmed", "enabled", "verified"})
_WHILE_FALSE: Final = frozenset({
    "deleted", "removed", "banned", "blocked", "revoked", "disabled", "pending", "suspended", "rejected", "declined",
    "cancelled", "canceled", "archived", "inactive", "expired", "kicked", "left", "invited", "discarded", "excluded",
})  # fmt: skip
_ONCE_SET: Final = frozenset({"accepted_at", "confirmed_at", "approved_at", "joined_at"})
_UNTIL_SET: Final = frozenset({
    "deleted_at", "removed_at", "left_at", "revoked_at", "ended_at", "discarded_at", "suspended_at", "banned_at",
    "blocked_at", "cancelled_at", "canceled_at", "rejected_at", "declined_at", "disabled_at", "archived_at",
    "deactivated_at", "kicked_at", "excluded_at",
})  # fmt: skip
_UNKNOWN: Final = frozenset({"status", "state", "role"})
_BY_THE_CLOCK: Final = frozenset({
    "expires_at", "expires_on", "expires", "expired_at", "expiry", "expiry_date", "expiration", "expiration_date",
    "expire_at", "valid_until", "valid_to", "valid_from", "until", "ends_at", "ends_on", "end_date", "end_at",
    "starts_at", "starts_on", "start_date", "start_at", "suspended_until", "banned_until", "blocked_until",
})  # fmt: skip


def standing(table: OutlinedTable) -> tuple[tuple[str, str], ...]:
    """The columns by which a membership counts only for some time, and the test of each, with {} for the column."""
    return tuple((column.name, test) for column in table.columns if (test := _test(column)))


def doubts(table: OutlinedTable) -> tuple[str, ...]:
    """The columns that may say that a membership does not count, and that no test is known for."""
    return tuple(column.name for column in table.columns if _speaks_of_it(column) and not _test(column))


def _test(column: SourceColumn) -> str:
    name = snake(column.name)
    if column.type == "boolean":
        word = _without_is(name)
        return "{}" if word in _WHILE_TRUE else "NOT {}" if word in _WHILE_FALSE else ""
    return "{} IS NOT NULL" if name in _ONCE_SET else "{} IS NULL" if name in _UNTIL_SET else ""


def _speaks_of_it(column: SourceColumn) -> bool:
    name = snake(column.name)
    known = _without_is(name) in _WHILE_TRUE | _WHILE_FALSE or name in _ONCE_SET | _UNTIL_SET | _BY_THE_CLOCK
    return known or name.rpartition("_")[2] in _UNKNOWN


def _without_is(name: str) -> str:
    return name.removeprefix("is_").removeprefix("was_")
