"""The limits of a stream request, and the parser of its body, which is untrusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, cast

import orjson
from msgspec import Meta

from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import user_in_key
from headwater_rules.evaluate.limits import MOST_BUCKETS, MOST_RESULTS
from headwater_rules.results import StreamSubscription

MAX_NESTING = 100
"""The most levels of arrays and objects in client parameters. They are written as JSON again for the rules. Every JSON
library has a limit of its own; this one is below all of them."""

MAX_VALUES = 10_000
"""The most values in all parameters of a request together. They are kept as long as its stream, and an empty array
takes twenty times the memory of its text."""

MOST_CONTAINERS = 20_000
"""The most arrays and objects in a body, besides those of the buckets and subscriptions that it lists. Even a parser in
C takes a tenth of a second for 350,000 empty arrays."""

MAX_CLIENT_ID = 1024
"""The most bytes of a client id, which stores use in keys."""

MAX_METADATA, MAX_METADATA_LENGTH = 20, 300
"""How many entries of `app_metadata` are kept, and how many characters of each. The rest is dropped without an error,
since only the log uses it."""

_MAX_OP_ID = 2**63 - 1
_MAX_EXACT = 2**53 - 1
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[{'))
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)

JsonObject = Mapping[str, object]


class InvalidRequestError(HeadwaterError):
    """The request is invalid. Nothing was done."""

    code = "PSYNC_S2001"


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one connection may ask for."""

    max_buckets: Annotated[int, Meta(ge=1, extra={"key": "max_buckets_per_connection"})] = MOST_BUCKETS
    max_results: Annotated[int, Meta(ge=1, extra={"key": "max_parameter_query_results"})] = MOST_RESULTS


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How many subscriptions, and how many buckets that the device has, a body may list."""

    subscriptions: Annotated[int, Meta(ge=1, extra={"key": "max_subscriptions_per_connection"})] = 1000
    known_buckets: Annotated[int, Meta(ge=1, extra={"key": "max_known_buckets_per_connection"})] = 20_000


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a client asks for when it opens a stream. `positions` has the last op that the client has, by bucket. With
    `raw_data`, rows are sent as JSON text; without it, as nested objects."""

    positions: Mapping[str, OpId] = field(default_factory=dict)
    raw_data: bool = False
    parameters: JsonObject | None = None
    client_id: str | None = None
    app_metadata: Mapping[str, str] = field(default_factory=dict)
    include_defaults: bool = True
    subscriptions: tuple[StreamSubscription, ...] = ()


def parse_stream_request(body: bytes, limits: BodyLimits = BodyLimits()) -> StreamRequest:
    """Parse a request body. Raises InvalidRequestError, which names the field."""
    return stream_request(_parsed(body, MOST_CONTAINERS + limits.known_buckets + 2 * limits.subscriptions), limits)


def stream_request(fields: object, limits: BodyLimits = BodyLimits()) -> StreamRequest:
    """Make a request from the fields of its body. Raises InvalidRequestError, which names the field."""
    request = _object(fields, "body")
    streams = _object(request.get("streams", {}), "streams")
    for ignored in ("include_checksum", "binary_data"):  # checksums are always sent, and blobs always as text
        _boolean(request.get(ignored), ignored)
    _texts(request.get("only"), "only")
    parameters = _parameters(request.get("parameters"), "parameters")
    subscriptions = _subscriptions(streams.get("subscriptions"), limits.subscriptions)
    if _values([parameters, *(each.parameters for each in subscriptions)]) > MAX_VALUES:
        raise _too_many_values("parameters, streams.subscriptions")
    return StreamRequest(
        positions=_positions(request.get("buckets"), limits.known_buckets),
        raw_data=_boolean(request.get("raw_data"), "raw_data"),
        parameters=parameters,
        client_id=parse_client_id(request.get("client_id")),
        app_metadata=_metadata(request.get("app_metadata")),
        include_defaults=_boolean(streams.get("include_defaults"), "streams.include_defaults", default=True),
        subscriptions=subscriptions,
    )


def parse_client_id(value: object) -> str | None:
    """Check a client id, so that every store can keep it. Raises InvalidRequestError."""
    if value is None:
        return None
    client_id = _text(value, "client_id")
    if "\0" in client_id:
        raise InvalidRequestError("client_id contains a NUL character", "client_id", "send an id without control bytes")
    if len(client_id.encode()) > MAX_CLIENT_ID:
        raise InvalidRequestError(
            f"client_id is longer than {MAX_CLIENT_ID} bytes", "client_id", "send the id that the SDK made"
        )
    return client_id


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A write checkpoint whose id the client chose."""

    client_id: str
    id: int


def parse_checkpoint_request(body: bytes) -> CheckpointRequest:
    """Parse the body of a checkpoint request. Raises InvalidRequestError, which names the field."""
    fields = _object(_parsed(body, MOST_CONTAINERS), "body")
    client_id = parse_client_id(fields.get("client_id"))
    if client_id is None:
        raise InvalidRequestError("client_id is missing", "client_id", "send the id of the client")
    return CheckpointRequest(client_id, _chosen_id(fields.get("checkpoint_request_id")))


def _parsed(body: bytes, most_containers: int) -> object:
    if _containers(body, most_containers) > most_containers:
        what = f"the body has more than {most_containers:,} arrays and objects"
        raise InvalidRequestError(what, fix="send fewer")
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError("the body is not valid JSON", fix=f"send one JSON object: {error.msg}") from error


def _containers(body: bytes, enough: int) -> int:
    """How many arrays and objects JSON has, or some number up to `enough` if it has no more."""
    at_most = body.count(b"[") + body.count(b"{")
    if at_most <= enough:
        return at_most
    skeleton = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_STRUCTURE)
    return sum(map(len, skeleton.split(b'"')[::2]))  # every other part is within a string


def _chosen_id(value: object) -> int:
    """Refuses numbers that a JSON parser may have rounded."""
    where = "checkpoint_request_id"
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool) and value <= _MAX_EXACT:
        number = value
    else:
        number = 0
    if not 1 <= number <= _MAX_OP_ID:
        raise InvalidRequestError(f"{where} is not a valid number", where, _CHOSEN)
    return number


_CHOSEN = "send a whole number from 1 to 2^63-1; send one beyond 2^53 as a string, since JSON numbers are rounded there"


def write_key(user_id: str, client_id: str | None) -> str:
    """The key under which a client's write checkpoints are counted; no two clients have the same."""
    user = user_in_key(user_id)
    return user if client_id is None else f"{user}/{client_id}"


def _positions(value: object, most: int) -> dict[str, OpId]:
    if value is None:
        return {}
    positions = {}
    for index, item in enumerate(_at_most(most, value, "buckets", "max_known_buckets_per_connection")):
        where = f"buckets[{index}]"
        bucket = _object(item, where)
        positions[_text(bucket.get("name"), f"{where}.name")] = _op_id(bucket.get("after"), f"{where}.after")
    return positions


def _op_id(value: object, where: str) -> OpId:
    text = _text(value, where)
    if not _NUMBER.fullmatch(text) or int(text) > _MAX_OP_ID:
        raise InvalidRequestError(f"{where} is not an op id", where, "send a whole number from 0 to 2^63-1 as a string")
    return OpId(int(text))


def _parameters(value: object, where: str) -> JsonObject | None:
    if value is None:
        return None
    parameters = _object(value, where)
    if _values([parameters]) > MAX_VALUES:
        raise _too_many_values(where)
    if deeper_than(parameters, MAX_NESTING):
        raise InvalidRequestError(f"{where} is nested deeper than {MAX_NESTING} levels", where, "send a flatter object")
    return parameters


def deeper_than(value: object, limit: int) -> bool:
    """Whether a JSON value has more levels below it than `limit`."""
    level = [value]
    for _ in range(limit + 1):
        level = _inner(level)
        if not level:
            return False
    return True


def _values(objects: list[object]) -> int:
    """How many values are in these, at all levels; somewhat more than MAX_VALUES if there are more."""
    count, level = 0, _inner(objects, MAX_VALUES)
    while level and count <= MAX_VALUES:
        count += len(level)
        level = _inner(level, MAX_VALUES)
    return count


def _too_many_values(where: str) -> InvalidRequestError:
    return InvalidRequestError(f"the parameters have more than {MAX_VALUES:,} values", where, "send fewer")


def _inner(level: Iterable[object], enough: int | None = None) -> list[object]:
    """The values one level below these, or the first of them if they are more than `enough`."""
    inner = (
        inner
        for outer in level
        if isinstance(outer, dict | list)
        for inner in (outer.values() if isinstance(outer, dict) else outer)
    )
    return list(inner if enough is None else islice(inner, enough + 1))


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    entries = _object(value, "app_metadata")
    for wrong in (key for key, text in entries.items() if not isinstance(text, str)):
        raise _wrong("a string", f"app_metadata.{wrong[:MAX_METADATA_LENGTH]}")
    kept = cast("Mapping[str, str]", entries).items()
    return {key[:MAX_METADATA_LENGTH]: text[:MAX_METADATA_LENGTH] for key, text in islice(kept, MAX_METADATA)}


def _boolean(value: object, where: str, *, default: bool = False) -> bool:
    if value is None:
        return default
    if not isinstance(value, bool):
        raise _wrong("a boolean", where)
    return value


def _texts(value: object, where: str) -> None:
    items = [] if value is None else _list(value, where)
    for index in (index for index, item in enumerate(items) if not isinstance(item, str)):
        raise _wrong("a string", f"{where}[{index}]")


def _subscriptions(value: object, most: int) -> tuple[StreamSubscription, ...]:
    if value is None:
        return ()
    items = _at_most(most, value, "streams.subscriptions", "max_subscriptions_per_connection")
    return tuple(_subscription(item, f"streams.subscriptions[{index}]") for index, item in enumerate(items))


def _subscription(value: object, where: str) -> StreamSubscription:
    item = _object(value, where)
    for key in ("parameters", "override_priority"):
        if key not in item:
            raise InvalidRequestError(f"{key} is missing", where, "send it; it may be null")
    return StreamSubscription(
        stream=_text(item.get("stream"), f"{where}.stream"),
        parameters=_parameters(item["parameters"], f"{where}.parameters"),
        override_priority=_priority(item["override_priority"], f"{where}.override_priority"),
    )


def _priority(value: object, where: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 3:
        raise _wrong("null or a whole number from 0 to 3", where)
    return value


def _object(value: object, where: str) -> JsonObject:
    if not isinstance(value, dict):
        raise _wrong("an object", where)
    return cast(JsonObject, value)


def _list(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise _wrong("an array", where)
    return cast("list[object]", value)


def _at_most(most: int, value: object, where: str, setting: str) -> list[object]:
    items = _list(value, where)
    if len(items) > most:
        fix = f"send fewer, or raise api.parameters.{setting}, which allows {most:,}"
        raise InvalidRequestError(f"{where} has {len(items):,} entries", where, fix)
    return items


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong("a string", where)
    return value


def _wrong(expected: str, where: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where} has the wrong type", where, f"send {expected}")
