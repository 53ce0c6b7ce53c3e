"""Why the rows of a table are being compared with the source: a code that is kept with the table and that code goes
by, and the sentence that people read of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Cause(StrEnum):
    """What happened to a table. The values are kept in stores: they may come, and never change."""

    NEW = "new"
    NEW_IN_VERSION = "new_in_version"
    """Only a version of the sync config that is on its way reads it. Detail: the version's id."""
    REDEFINED = "redefined"
    """Its rows are evaluated, too, for what the rules make of them can be another although their values are the
    same."""
    REPLACED = "replaced"
    """Its definition may be the same, but what the store has of a row may be older than what the stream leaves out as
    unchanged. So it is for those that `changed_unseen` names."""
    SLOT_LOST = "slot_lost"
    LEFT_OUT = "left_out"
    """A transaction was not applied. Detail: where it ends."""
    PARTLY_PUBLISHED = "partly_published"
    REKEYED = "rekeyed"
    """Its rows get other ids before they are compared. Until then its changes can't be applied."""
    LOCKED = "locked"
    """What its changes lack only the source can say, which does not as long as the table is locked."""
    IDS_LOST = "ids_lost"
    """It is to be emptied and filled again."""
    ATTACHED = "attached"
    """Only some partitions are compared. Detail: their names, each with its oid in brackets."""
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
    """Why a table is being compared; `detail` goes on with what its cause says it is."""

    cause: Cause
    detail: str = ""

    def __str__(self) -> str:
        return _SENTENCES[self.cause] + self.detail


def reason_columns(reason: ResyncReason | None) -> tuple[str, str]:
    """Cause and detail as stores keep them; both are empty for a table that is not being compared."""
    return ("", "") if reason is None else (reason.cause.value, reason.detail)


def stored_reason(cause: str, detail: str) -> ResyncReason | None:
    """The reason that was kept as these columns. One that another version wrote is taken for the cause that takes
    nothing for granted."""
    if not cause:
        return None
    return ResyncReason(Cause(cause), detail) if cause in _CODES else ResyncReason(Cause.REPLACED)


def reason_of_sentence(sentence: str) -> ResyncReason | None:
    """The reason that an archive of format 1 has in words."""
    if not sentence:
        return None
    for cause, words in _SENTENCES.items():
        if sentence == words or (words.endswith(" ") and sentence.startswith(words)):
            return ResyncReason(cause, sentence.removeprefix(words))
    return ResyncReason(Cause.REPLACED)
