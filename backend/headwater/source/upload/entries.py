"""What a device uploads: transactions of entries, each as it came and, once it is to be applied, as a typed write."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from headwater.source.upload.errors import BadEntry
from headwater.source.upload.json_text import Json, write_json

DIGEST_BYTES = 16
_PAYLOAD = ("op", "type", "id", "data", "old", "metadata")


class WriteKind(Enum):
    """The SDK's names for insert-or-replace, update and delete."""

    PUT = "PUT"
    PATCH = "PATCH"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Device:
    """Who uploads: the token's user, one database on one device, and the token's claims as JSON."""

    sub: str
    client_id: str
    claims: str = field(repr=False)

    @property
    def key(self) -> bytes:
        """What tells devices apart. A hash, since a user's id may be longer than an index takes."""
        return hashlib.sha256(write_json([self.sub, self.client_id]).encode()).digest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One change as the device sent it, whatever is in it. `digest` is of all that it says."""

    op_id: int
    fields: Mapping[str, Json] = field(repr=False)
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Write:
    """One change that makes sense. `old` is None where the device does not track previous values."""

    op_id: int
    kind: WriteKind
    table: str
    row_id: str = field(repr=False)
    data: Mapping[str, Json] = field(repr=False)
    old: Mapping[str, Json] | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientTransaction:
    """Changes that a device made together, in their order; there is at least one."""

    entries: tuple[Entry, ...]

    @property
    def first_op(self) -> int:
        return self.entries[0].op_id

    @property
    def last_op(self) -> int:
        return self.entries[-1].op_id

    @property
    def digest(self) -> bytes:
        return _hash(b"".join([entry.digest for entry in self.entries]))

    @property
    def text(self) -> str:
        """As JSON, from which `entry_of` makes the same again."""
        return write_json([entry.fields for entry in self.entries])


def entry_of(op_id: int, fields: Mapping[str, Json]) -> Entry:
    """The entry with its digest. Raises ValueError for what is nested too deep."""
    payload = {name: fields[name] for name in _PAYLOAD if fields.get(name) is not None}
    return Entry(op_id, fields, _hash(write_json(payload).encode()))


def read_write(entry: Entry) -> Write:
    """Raises BadEntry."""
    kind, table, row_id = entry.fields.get("op"), entry.fields.get("type"), entry.fields.get("id")
    if not isinstance(kind, str) or kind not in WriteKind.__members__:
        raise BadEntry("op is not PUT, PATCH or DELETE", "op")
    if not isinstance(table, str):
        raise BadEntry("type is not the name of a table", "type")
    if not isinstance(row_id, str) or not sendable(row_id):
        raise BadEntry("the id of a row is not text that Postgres can hold", "id")
    data = _object(entry, "data") or {}
    return Write(entry.op_id, WriteKind[kind], table, row_id, data, _object(entry, "old"))


def sendable(text: str) -> bool:
    """Whether Postgres can hold a text: no NUL, and no half of a surrogate pair."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _object(entry: Entry, name: str) -> Mapping[str, Json] | None:
    value = entry.fields.get(name)
    if value is None or isinstance(value, Mapping):
        return value
    raise BadEntry(f"{name} is not an object", name)


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def transaction_of(entries: Sequence[Entry]) -> ClientTransaction:
    """Raises ValueError unless the op ids rise."""
    numbers = [entry.op_id for entry in entries]
    if not numbers or numbers != sorted(set(numbers)) or numbers[0] < 1:
        raise ValueError("op ids do not rise")
    return ClientTransaction(tuple(entries))
