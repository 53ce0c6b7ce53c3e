"""The body of a stream request, from untrusted bytes to frozen data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

import orjson

from headwater.errors import HeadwaterError, Kind
from headwater.oplog.op import OpId
from headwater.storage.shared.write_key import user_in_key
from headwater_rules.results import Subscription

MAX_NESTING = 100
"""Levels of arrays and objects in client parameters. They are rendered again for the rules, and every JSON library
has its own limit; this one is below all of them."""

MAX_CLIENT_ID = 1024
"""Bytes of a client id, which is part of what writes are counted by."""

MAX_METADATA, MAX_METADATA_LENGTH = 20, 300
"""Entries of `app_metadata`, and characters of each: it is for the log only, and cut without a word."""

_MAX_OP_ID = 2**63 - 1
_MAX_EXACT = 2**53 - 1
_NUMBER = re.compile(r"[0-9]{1,19}", re.ASCII)

JsonObject = Mapping[str, object]


class InvalidRequestError(HeadwaterError):
    """The request can't be understood; nothing was done."""

    kind = Kind.REJECT
    code = "PSYNC_S2001"


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How much a body may list: subscriptions, and buckets that the device has."""

    subscriptions: int = 1000
    known_buckets: int = 20_000


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """What a client says when it opens a stream. `positions` maps bucket to the last op it has; with `raw_data`
    rows are sent as JSON text, without it as nested objects."""

    positions: Mapping[str, OpId] = field(default_factory=dict)
    raw_data: bool = False
    parameters: JsonObject | None = None
    client_id: str | None = None
    app_metadata: Mapping[str, str] = field(default_factory=dict)
    include_defaults: bool = True
    subscriptions: tuple[Subscription, ...] = ()


def parse_stream_request(body: bytes, limits: BodyLimits = BodyLimits()) -> StreamRequest:
    """Read a request body. Raises InvalidRequestError that names the field."""
    return stream_request(_parsed(body), limits)


def stream_request(fields: object, limits: BodyLimits = BodyLimits()) -> StreamRequest:
    """A request from the fields of its body. Raises InvalidRequestError that names the field."""
    request = _object(fields, "body")
    streams = _object(request.get("streams", {}), "streams")
    return StreamRequest(
        positions=_positions(request.get("buckets"), limits.known_buckets),
        raw_data=request.get("raw_data") is True,
        parameters=_parameters(request.get("parameters"), "parameters"),
        client_id=parse_client_id(request.get("client_id")),
        app_metadata=_metadata(request.get("app_metadata")),
        include_defaults=_include_defaults(streams),
        subscriptions=_subscriptions(streams.get("subscriptions"), limits.subscriptions),
    )


def parse_client_id(value: object) -> str | None:
    """A client id as stores can keep it. Raises InvalidRequestError."""
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
    """Read the body of a checkpoint request. Raises InvalidRequestError that names the field."""
    fields = _object(_parsed(body), "body")
    client_id = parse_client_id(fields.get("client_id"))
    if client_id is None:
        raise InvalidRequestError("client_id is missing", "client_id", "send the id of the client")
    return CheckpointRequest(client_id, _chosen_id(fields.get("checkpoint_request_id")))


def _parsed(body: bytes) -> object:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError("the body is not valid JSON", fix=f"send one JSON object: {error.msg}") from error


def _chosen_id(value: object) -> int:
    """A number that JSON may have rounded is none."""
    where = "checkpoint_request_id"
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool) and value <= _MAX_EXACT:
        number = value
    else:
        number = 0
    if not 1 <= number <= _MAX_OP_ID:
        raise InvalidRequestError("not a checkpoint request's id", where, "send 1 to 2^63-1, beyond 2^53 as a string")
    return number


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
        raise InvalidRequestError("not an op id", where, "send a whole number from 0 to 2^63-1 as a string")
    return OpId(int(text))


def _parameters(value: object, where: str) -> JsonObject | None:
    if value is None:
        return None
    parameters = _object(value, where)
    if _deeper_than(parameters, MAX_NESTING):
        raise InvalidRequestError(f"nested deeper than {MAX_NESTING} levels", where, "send a flatter object")
    return parameters


def _deeper_than(value: object, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def _metadata(value: object) -> dict[str, str]:
    if value is None:
        return {}
    entries = {
        key[:MAX_METADATA_LENGTH]: _text(text, f"app_metadata.{key[:MAX_METADATA_LENGTH]}")[:MAX_METADATA_LENGTH]
        for key, text in _object(value, "app_metadata").items()
    }
    return dict(islice(entries.items(), MAX_METADATA))


def _include_defaults(streams: JsonObject) -> bool:
    value = streams.get("include_defaults", True)
    if not isinstance(value, bool):
        raise _wrong("a boolean", "streams.include_defaults")
    return value


def _subscriptions(value: object, most: int) -> tuple[Subscription, ...]:
    if value is None:
        return ()
    items = _at_most(most, value, "streams.subscriptions", "max_subscriptions_per_connection")
    return tuple(_subscription(item, f"streams.subscriptions[{index}]") for index, item in enumerate(items))


def _subscription(value: object, where: str) -> Subscription:
    item = _object(value, where)
    for key in ("parameters", "override_priority"):
        if key not in item:
            raise InvalidRequestError(f"{key} is missing", where, "send it, null where there is none")
    return Subscription(
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
