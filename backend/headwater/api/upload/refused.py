"""What a device is told of a transaction that was refused: facts for the app, and a sentence for its user."""

from __future__ import annotations

from typing import Final

from headwater.source.upload.entries import ClientTransaction, sendable
from headwater.source.upload.errors import BY_APP, BY_POSTGRES, Reason, TooSlow
from headwater.source.upload.letters import Waiting

_NOT_ALLOWED: Final = "You may not change this."
_BAD_VALUE: Final = "A value is not of the kind that belongs here."
_FROM_A_COPY: Final = "This device was restored from a copy, and may have sent this before."

_BY_CODE: Final = {
    "HW_6110": "This can't be changed from a device.",
    "HW_6111": _BAD_VALUE,
    "HW_6112": "Somebody else changed this meanwhile.",
    "HW_6113": "This was deleted, or is not shared with you any more.",
    "HW_6114": _NOT_ALLOWED,
    "HW_6115": _FROM_A_COPY,
    "HW_6116": _FROM_A_COPY,
    TooSlow.code: "This change is too large to be taken at once.",
}

_BY_SQLSTATE: Final = {
    "22001": "A text is too long.",
    "22003": "A number is too large.",
    "22": _BAD_VALUE,
    "23502": "Something that is required is missing.",
    "23503": "Something that this belongs to is missing, or something still belongs to it.",
    "23505": "There is one like this already.",
    "23514": "A value is not allowed here.",
    "23P01": "This overlaps with something that is there already.",
    "23": "This contradicts what the server has.",
    "42501": _NOT_ALLOWED,
}

_OTHERWISE: Final = "The server could not take this change."


def told(reason: Reason, transaction: ClientTransaction | None = None) -> dict[str, object]:
    """The refusal as JSON. With the transaction it also names the entry that was refused, as the device sent it."""
    facts = {
        "code": reason.code,
        "sqlstate": reason.sqlstate or None,
        "op_id": reason.op_id,
        **_entry(reason.op_id, transaction),
        "message": for_user(reason),
        "description": reason.message,
    }
    return {name: value for name, value in facts.items() if value is not None}


def still_told(waiting: Waiting) -> dict[str, object]:
    """A transaction that still waits as a dead letter, as JSON."""
    return {
        "dead_letter": waiting.letter,
        "last_op_id": waiting.last_op,
        "parked_at": waiting.parked_at.isoformat(),
        "error": told(waiting.reason),
    }


def for_user(reason: Reason) -> str:
    """What may be shown to whoever made the change. It contains no name of a table or column and no value, unless the
    app's own function put it there."""
    if reason.code == BY_APP:
        return reason.message or _OTHERWISE
    if reason.code != BY_POSTGRES:
        return _BY_CODE.get(reason.code, _OTHERWISE)
    return _BY_SQLSTATE.get(reason.sqlstate) or _BY_SQLSTATE.get(reason.sqlstate[:2], _OTHERWISE)


def _entry(op_id: int | None, transaction: ClientTransaction | None) -> dict[str, str]:
    """`op`, `type` and `id` of the entry, without what is no text."""
    entries = () if transaction is None else transaction.entries
    fields = next((each.fields for each in entries if each.op_id == op_id), {})
    found = {name: fields.get(name) for name in ("op", "type", "id")}
    return {name: value for name, value in found.items() if isinstance(value, str) and sendable(value)}
