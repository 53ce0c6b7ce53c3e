"""What devices may send to the demo's write endpoint: from JSON to checked values, and nothing else.

`TABLES` is the list of what may be written. A table or column that is not in it can't be named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar
from uuid import UUID

import orjson

from headwater.api.errors import ApiError
from headwater.errors import Kind

MAX_BATCH = 10_000

Scalar = str | bool | UUID | None


class InvalidWriteError(ApiError):
    """A write that makes no sense, however often it is sent."""

    code = "HW_8011"
    status: ClassVar[int] = 422


class ForbiddenWriteError(ApiError):
    """A write to what is not this user's."""

    code = "HW_8012"
    status: ClassVar[int] = 403


class StaleWriteError(ApiError):
    """A write to what is gone, or was made by somebody else meanwhile."""

    code = "HW_8013"
    status: ClassVar[int] = 409


class BusyError(ApiError):
    """The database did not take the write now; the device tries again."""

    kind: ClassVar[Kind] = Kind.RETRY
    code = "HW_8014"
    status: ClassVar[int] = 503


class WriteKind(Enum):
    """The SDK's names for insert-or-replace, update and delete."""

    PUT = "PUT"
    PATCH = "PATCH"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Write:
    """One change of a row. `values` hold allowed columns only; a null is left out by the SDK in a PUT."""

    kind: WriteKind
    table: str
    id: UUID
    values: Mapping[str, Scalar]

    def uuid(self, column: str) -> UUID | None:
        """A column's value, where the write has one."""
        value = self.values.get(column)
        return value if isinstance(value, UUID) else None


def _text(value: object) -> Scalar:
    if not isinstance(value, str) or "\x00" in value:
        raise ValueError
    return value


def _flag(value: object) -> Scalar:
    if value not in (0, 1):  # True and False are equal to them
        raise ValueError
    return bool(value)


def _key(value: object) -> Scalar:
    if not isinstance(value, str):
        raise ValueError
    return UUID(value)


TABLES: Mapping[str, Mapping[str, Callable[[object], Scalar]]] = {
    "lists": {"owner_id": _key, "name": _text, "created_at": _text},
    "list_members": {"list_id": _key, "user_id": _key, "role": _text},
    "todos": {
        "list_id": _key,
        "title": _text,
        "notes": _text,
        "done": _flag,
        "created_at": _text,
        "completed_at": _text,
    },
}


def parse_batch(body: bytes) -> list[Write]:
    """The writes of a request body, in their order. Raises InvalidWriteError."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise InvalidWriteError("the body is not JSON") from None
    batch = document.get("batch") if isinstance(document, dict) else None
    if not isinstance(batch, list):
        raise InvalidWriteError("the body has no list called batch")
    if len(batch) > MAX_BATCH:
        raise InvalidWriteError(f"the batch has more than {MAX_BATCH} writes")
    return [_write(entry) for entry in batch]


def _write(entry: object) -> Write:
    if not isinstance(entry, dict):
        raise InvalidWriteError("a write of the batch is not an object")
    kind, table, data = entry.get("op"), entry.get("type"), entry.get("data")
    if not isinstance(kind, str) or kind not in {each.value for each in WriteKind}:
        raise InvalidWriteError("op is not PUT, PATCH or DELETE")
    if not isinstance(table, str) or table not in TABLES:
        raise InvalidWriteError(f"the table can't be written; there are {', '.join(TABLES)}")
    if data is not None and not isinstance(data, dict):
        raise InvalidWriteError("data is not an object")
    values = {name: _value(table, name, value) for name, value in (data or {}).items() if name != "id"}
    return Write(WriteKind(kind), table, _row_id(entry.get("id")), values)


def _row_id(value: object) -> UUID:
    try:
        if isinstance(value, str):
            return UUID(value)
    except ValueError:
        pass
    raise InvalidWriteError("the id of a row is not a uuid")


def _value(table: str, column: str, value: object) -> Scalar:
    read = TABLES[table].get(column)
    if read is None:
        raise InvalidWriteError(f"{table} has no column of this name that can be written")
    if value is None:
        return None
    try:
        return read(value)
    except ValueError:
        raise InvalidWriteError(f"{table}.{column} has a value of the wrong kind") from None
