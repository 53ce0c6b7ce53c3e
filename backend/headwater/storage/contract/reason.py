"""Why a table is being compared with the source: a code, stored with the table, that decides what is done, and a
sentence for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import orjson


class Cause(StrEnum):
    """What happened to a table. Values are stored: add new ones, never change them."""

    NEW = "new"
    NEW_IN_VERSION = "new_in_version"
    """Read only by a version of the sync config that is not active yet. Detail: the version's id."""
    REDEFINED = "redefined"
    """Rows are evaluated again too, because equal values may now give other results."""
    REPLACED = "replaced"
    """The definition may be unchanged, but the stored values may be older than those that the stream leaves out as
    unchanged. `changed_unseen` names the causes for which this holds."""
    SLOT_LOST = "slot_lost"
    LEFT_OUT = "left_out"
    """A transaction was skipped. Detail: the LSN where it ends."""
    PARTLY_PUBLISHED = "partly_published"
    REKEYED = "rekeyed"
    """Its rows get new ids before they are compared. Until then its changes can't be applied."""
    LOCKED = "locked"
    """Its changes need values that only the source can give, and the source does not while the table is locked."""
    IDS_LOST = "ids_lost"
    """The table is to be emptied and filled again."""
    ATTACHED = "attached"
    """Only the partitions that the reason names are compared."""
    ASKED = "asked"
    AUDIT = "audit"
    SAMPLED = "sampled"


_SENTENCES: Final[Mapping[Cause, str]] = {
    Cause.NEW: "new in the source",
    Cause.NEW_IN_VERSION: "new in version ",
    Cause.REDEFINED: "its definition changed",
    Cause.REPLACED: "changes of it were not seen, or it was another table",
    Cause.SLOT_LOST: "the slot was lost",
    Cause.LEFT_OUT: "a transaction was left out: ",
    Cause.PARTLY_PUBLISHED: "not all of its changes are published",
    Cause.REKEYED: "its replica identity changed",
    Cause.LOCKED: "somebody keeps it locked",
    Cause.IDS_LOST: "its rows can't be told apart by its new replica identity",
    Cause.ATTACHED: "partitions were attached: ",
    Cause.ASKED: "on command",
    Cause.AUDIT: "audit",
    Cause.SAMPLED: "sampling audit",
}


_CODES: Final = frozenset(cause.value for cause in Cause)


@dataclass(frozen=True, slots=True)
class ResyncReason:
    """Why a table is being compared; `detail` completes the sentence of `cause`. `partitions` are, when ATTACHED, oid
    and name of those that are compared."""

    cause: Cause
    detail: str = ""
    partitions: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        return _SENTENCES[self.cause] + (self.detail or ", ".join(name for _, name in self.partitions))


def reason_columns(reason: ResyncReason | None) -> tuple[str, str]:
    """Cause and detail as stored; both are empty for a table that is not being compared."""
    if reason is None:
        return "", ""
    detail = orjson.dumps(reason.partitions).decode() if reason.cause is Cause.ATTACHED else reason.detail
    return reason.cause.value, detail


def stored_reason(cause: str, detail: str) -> ResyncReason | None:
    """The reason stored in these columns. A cause that this version does not know is read as the one that makes the
    fewest assumptions."""
    if not cause:
        return None
    if cause == Cause.ATTACHED:
        return ResyncReason(Cause.ATTACHED, partitions=tuple((oid, name) for oid, name in orjson.loads(detail)))
    return ResyncReason(Cause(cause), detail) if cause in _CODES else ResyncReason(Cause.REPLACED)
