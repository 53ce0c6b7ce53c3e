"""What a device uploads: transactions of entries as they were received, and the typed write of each entry."""

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
    """The client SDKs' names for insert-or-replace, update and delete."""

    PUT = "PUT"
    PATCH = "PATCH"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True)
class Device:
    """Who uploads: the token's `sub`, the client id of one database on one device, the token's claims as JSON, and the
    version of the app, which the device may say."""

    sub: str
    client_id: str
    claims: str = field(repr=False)
    app_version: str = ""

    @property
    def key(self) -> bytes:
        """Identifies the device. A hash, since a user's id may be too long for an index."""
        return hashlib.sha256(write_json([self.sub, self.client_id]).encode()).digest()


@dataclass(frozen=True, slots=True)
class Entry:
    """One change as the device sent it, not validated. `digest` is a hash of its content, without the op id."""

    op_id: int
    fields: Mapping[str, Json] = field(repr=False)
    digest: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Write:
    """One valid change. `old` is None when the device does not track previous values."""

    op_id: int
    kind: WriteKind
    table: str
    row_id: str = field(repr=False)
    data: Mapping[str, Json] = field(repr=False)
    old: Mapping[str, Json] | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class ClientTransaction:
    """The changes of one transaction on the device, in order. Never empty."""

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
        """The entries as JSON, which `letters.transaction_in` reads back."""
        return write_json([entry.fields for entry in self.entries])


def entry_of(op_id: int, fields: Mapping[str, Json]) -> Entry:
    """Make an entry with its digest. Raises ValueError when `fields` is nested too deeply."""
    payload = {name: fields[name] for name in _PAYLOAD if fields.get(name) is not None}
    return Entry(op_id, fields, _hash(write_json(payload).encode()))


def read_write(entry: Entry) -> Write:
    """Validate an entry. Raises BadEntry."""
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
    """Whether Postgres can store the text: it has no NUL and no lone surrogate."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _object(entry: Entry, name: str) -> Mapping[str, Json] | None:
    value = entry.fields.get(name)
    if value is None or isinstance(value, Mapping):
        return value
    raise BadEntry(f"{name} is not an object", name)


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def transaction_of(entries: Sequence[Entry]) -> ClientTransaction:
    """Make a transaction. Raises ValueError unless there are entries with increasing, positive op ids."""
    numbers = [entry.op_id for entry in entries]
    if not numbers or numbers != sorted(set(numbers)) or numbers[0] < 1:
        raise ValueError("op ids do not increase")
    return ClientTransaction(tuple(entries))
