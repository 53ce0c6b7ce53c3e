"""What a device uploads: transactions of entries as they were received, and the typed write of each entry."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from json.scanner import py_make_scanner  # type: ignore[attr-defined]  # not in the stubs
from typing import TypeAlias, TypeVar

from headwater.source.upload.errors import UploadRefusedError

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
    """Validate an entry. Raises HW_6111."""
    kind, table, row_id = entry.fields.get("op"), entry.fields.get("type"), entry.fields.get("id")
    if not isinstance(kind, str) or kind not in WriteKind.__members__:
        raise UploadRefusedError("op is not PUT, PATCH or DELETE", "op", code="HW_6111")
    if not isinstance(table, str):
        raise UploadRefusedError("type is not the name of a table", "type", code="HW_6111")
    if not isinstance(row_id, str) or not sendable(row_id):
        raise UploadRefusedError("the id of a row is not text that Postgres can hold", "id", code="HW_6111")
    data = _object(entry, "data") or {}
    return Write(entry.op_id, WriteKind[kind], table, row_id, data, _object(entry, "old"))


def sendable(text: str) -> bool:
    """Whether Postgres can store the text: it has no NUL and no lone surrogate."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _object(entry: Entry, name: str) -> Mapping[str, Json] | None:
    value = entry.fields.get(name)
    if value is None or isinstance(value, Mapping):
        return value
    raise UploadRefusedError(f"{name} is not an object", name, code="HW_6111")


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def transaction_of(entries: Sequence[Entry]) -> ClientTransaction:
    """Make a transaction. Raises ValueError unless there are entries with increasing, positive op ids."""
    numbers = [entry.op_id for entry in entries]
    if not numbers or numbers != sorted(set(numbers)) or numbers[0] < 1:
        raise ValueError("op ids do not increase")
    return ClientTransaction(tuple(entries))


Parsed = TypeVar("Parsed")

MOST_NAMES = 10_000
"""The most names in an object. Stock clients send one for each column."""

LEAST_BYTES = 8
"""Bytes of JSON that there are at least for each array or object, on average, unless a text is small. The shortest
change that a client sends has two of them in some 60 bytes."""

_SMALL = 1 << 18  # bytes of a text that is parsed quickly whatever is in it
_MOST_ARRAYS = 50_000

_WHOLE = re.compile(r"(-?\d+)\.0+")


@dataclass(frozen=True, slots=True)
class Number:
    """A number as the JSON wrote it: a numeric column can hold digits that a float loses."""

    text: str

    @property
    def plain(self) -> str:
        """The text, without a fraction of zeros (1.0): some clients add one, and integer columns refuse it."""
        whole = _WHOLE.fullmatch(self.text)
        return self.text if whole is None else whole[1]


Json: TypeAlias = "bool | str | Number | Sequence[Json] | Mapping[str, Json] | None"


class TooManyValuesError(ValueError):
    """JSON has too many arrays and objects, or too many names in an object."""


def read_json(text: bytes | str) -> Json:
    """Parse JSON, without keeping other threads from running for long. Raises ValueError when it is invalid or nested
    too deeply, and TooManyValuesError."""
    text = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        value: Json = _decoder(text).decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None
    return value


class _Decoder(json.JSONDecoder):
    """Names what json.scanner takes from a decoder."""

    parse_array: Callable[..., object]
    parse_object: Callable[..., object]
    scan_once: Callable[..., object]


def _decoder(text: str) -> _Decoder:
    """The parser in C lets other threads run only when it calls what is given here, so at each number and object. It
    does not parse what may have very many other values in a row."""
    decoder = _Decoder(object_hook=_few_names, parse_int=Number, parse_float=Number, parse_constant=_no_constant)
    arrays, values, size = text.count("["), text.count(","), len(text)
    is_dense = (values + arrays + text.count("{")) * LEAST_BYTES > size
    if size > _SMALL and (is_dense or arrays > _MOST_ARRAYS):
        count = _Counted(size // LEAST_BYTES)
        decoder.parse_array = count(decoder.parse_array)
        decoder.parse_object = count(decoder.parse_object)
        decoder.scan_once = py_make_scanner(decoder)
    return decoder


def _few_names(found: dict[str, Json]) -> Json:
    if len(found) > MOST_NAMES:
        raise TooManyValuesError(f"an object has more than {MOST_NAMES:,} names")
    return found


class _Counted:
    """Counts calls of functions, and refuses more than `most`."""

    def __init__(self, most: int) -> None:
        self._left = most

    def __call__(self, parse: Callable[..., Parsed]) -> Callable[..., Parsed]:
        def counted(*given: object) -> Parsed:
            self._left -= 1
            if self._left < 0:
                raise TooManyValuesError(f"there are more arrays and objects than one in {LEAST_BYTES} bytes")
            return parse(*given)

        return counted


def write_json(value: Json) -> str:
    """Write ASCII JSON with sorted keys, so that equal values give equal texts. Raises ValueError when the value is
    nested too deeply."""
    try:
        return _written(value)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _written(value: Json) -> str:
    match value:
        case Number():
            return value.text
        case None | bool() | str():
            return json.dumps(value)
        case Mapping():
            return "{" + ",".join([f"{json.dumps(key)}:{_written(value[key])}" for key in sorted(value)]) + "}"
        case _:
            return "[" + ",".join([_written(each) for each in value]) + "]"


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
