"""Parses the body of an upload, which is untrusted, into transactions.

The whole request is refused only when the client id, the op ids or the lists around them are wrong. Any other mistake
in an entry is found when it is applied, and parks its transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headwater.api.errors import ApiError
from headwater.source.upload.entries import (
    ClientTransaction,
    Entry,
    Json,
    Number,
    TooManyValuesError,
    entry_of,
    read_json,
    sendable,
    transaction_of,
)
from headwater.source.upload.errors import BY_APP, BY_POSTGRES, Reason, WriteTimeoutError
from headwater.source.upload.waiting import Waiting
from headwater.sync.request import MAX_CLIENT_ID

MAX_OP_ID = 2**63 - 1

MAX_APP_VERSION = 50
"""Characters of the app's version that are kept. Only operators see it, so it never refuses an upload."""

MAX_TRANSACTIONS = 1000
"""Transactions in one request. Each is a commit of the source, and others wait meanwhile."""


class InvalidUploadError(ApiError):
    """The body of an upload has no valid client id, op ids or lists of entries. Nothing was applied."""

    code = "HW_6101"


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """One request: transactions of one device, in order, the version of its app, if it says one, and whether it wants
    the write checkpoint of what it sends."""

    client_id: str
    transactions: tuple[ClientTransaction, ...]
    app_version: str = ""
    write_checkpoint: bool = False


def parse_upload(body: bytes) -> UploadRequest:
    """Parse the body. Raises InvalidUploadError, which names the field, and HW_6104."""
    try:
        document = read_json(body)
    except TooManyValuesError as error:
        raise InvalidUploadError(f"the body is refused: {error}", fix="send fewer at once") from None
    except ValueError:
        raise InvalidUploadError("the body is not JSON", fix=_SHAPE) from None
    if not isinstance(document, Mapping):
        raise InvalidUploadError("the body is not an object", fix=_SHAPE)
    transactions: list[ClientTransaction] = []
    before = 0
    for place, each in enumerate(_list(document.get("transactions"), "transactions")):
        transaction = _transaction(each, f"transactions[{place}]")
        if transaction is None:
            continue
        if transaction.first_op <= before:
            raise InvalidUploadError("op ids do not increase", f"transactions[{place}]", "send transactions in order")
        if len(transactions) == MAX_TRANSACTIONS:
            what = f"the upload has more than {MAX_TRANSACTIONS} transactions"
            raise ApiError(what, "transactions", "send fewer at once", code="HW_6104")
        before = transaction.last_op
        transactions.append(transaction)
    version = document.get("app_version")
    app_version = version[:MAX_APP_VERSION] if isinstance(version, str) and version.isprintable() else ""
    wants_checkpoint = document.get("write_checkpoint") is True
    return UploadRequest(read_client_id(document.get("client_id")), tuple(transactions), app_version, wants_checkpoint)


_SHAPE = "send {client_id, transactions: [{crud: [{op_id, op, type, id, data}]}]}"


def read_client_id(value: Json) -> str:
    """Validate a client id. Raises InvalidUploadError."""
    if not isinstance(value, str) or not sendable(value) or not 0 < len(value.encode()) <= MAX_CLIENT_ID:
        what = f"client_id must be text of 1 to {MAX_CLIENT_ID} bytes"
        raise InvalidUploadError(what, "client_id", "send what getClientId() of the SDK returns")
    return value


def _transaction(value: Json, where: str) -> ClientTransaction | None:
    crud = value.get("crud") if isinstance(value, Mapping) else None
    entries = [_entry(each, f"{where}.crud[{place}]") for place, each in enumerate(_list(crud, f"{where}.crud"))]
    if not entries:
        return None
    try:
        return transaction_of(entries)
    except ValueError:
        raise InvalidUploadError("op ids do not increase", where, "send entries in order") from None


def _entry(value: Json, where: str) -> Entry:
    number = value.get("op_id") if isinstance(value, Mapping) else None
    if not isinstance(value, Mapping) or not isinstance(number, Number):
        raise InvalidUploadError("op_id must be a number", where, "send entries as toJSON() of the SDK makes them")
    text = number.text
    if not text.isdecimal() or len(text) > 19 or not 0 < int(text) <= MAX_OP_ID:
        raise InvalidUploadError("op_id must be a positive whole number", where)
    try:
        return entry_of(int(text), value)
    except ValueError:
        raise InvalidUploadError("the entry is nested too deeply", where) from None


def _list(value: Json, where: str) -> Sequence[Json]:
    if not isinstance(value, list):
        raise InvalidUploadError(f"{where} must be a list", where, _SHAPE)
    return value


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
    "HW_6133": "This can't be changed from a device.",
    "HW_6134": _NOT_ALLOWED,
    WriteTimeoutError.code: "This change is too large to be taken at once.",
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


def refusal_json(reason: Reason, transaction: ClientTransaction | None = None) -> dict[str, object]:
    """The refusal as JSON. With the transaction it also names the entry that was refused, as the device sent it."""
    facts = {
        "code": reason.code,
        "sqlstate": reason.sqlstate or None,
        "op_id": reason.op_id,
        **_entry_fields(reason.op_id, transaction),
        "message": for_user(reason),
        "description": reason.message,
    }
    return {name: value for name, value in facts.items() if value is not None}


def waiting_json(name: int | str, waiting: Waiting) -> dict[str, object]:
    """A transaction that still waits as a dead letter, which has this name, as JSON."""
    return {
        "dead_letter": name,
        "last_op_id": waiting.last_op,
        "parked_at": waiting.parked_at.isoformat(),
        "error": refusal_json(waiting.reason),
    }


def for_user(reason: Reason) -> str:
    """What may be shown to whoever made the change. It contains no name of a table or column and no value, unless the
    app's own function put it there."""
    if reason.code == BY_APP:
        return reason.message or _OTHERWISE
    if reason.code != BY_POSTGRES:
        return _BY_CODE.get(reason.code, _OTHERWISE)
    return _BY_SQLSTATE.get(reason.sqlstate) or _BY_SQLSTATE.get(reason.sqlstate[:2], _OTHERWISE)


def _entry_fields(op_id: int | None, transaction: ClientTransaction | None) -> dict[str, str]:
    """`op`, `type` and `id` of the entry, without what is no text."""
    entries = () if transaction is None else transaction.entries
    fields = next((each.fields for each in entries if each.op_id == op_id), {})
    found = {name: fields.get(name) for name in ("op", "type", "id")}
    return {name: value for name, value in found.items() if isinstance(value, str) and sendable(value)}
