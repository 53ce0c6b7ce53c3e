"""The source that a row of a client's table belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache

from headwater.source.upload.entries import Device, Entry, Number, WriteKind
from headwater.source.upload.errors import UploadBlockedError, UploadRefusedError
from headwater.source.upload.settings import UploadSettings, UploadTarget


def source_of(target: UploadTarget, device: Device, fields: Mapping[str, object]) -> str:
    """The name of the source that an entry with these fields is for. Raises HW_6110 when it is not among the
    connections, HW_6134 when no shard is meant, HW_6135 when the app does not send what tells the shard."""
    if not target.sources:
        what = "the table's source is not among the connections at present"
        raise UploadRefusedError(what, str(fields.get("type")), code="HW_6110")
    if len(target.sources) == 1 and not target.shards:
        return target.sources[0]
    if target.claim:
        where, value = f"claim {'.'.join(target.claim)}", _claim(device.claims, target.claim)
    else:
        where, value = f"column {target.column}", _column(target.column, fields)
    source = None if value is None else target.shards.get(value)
    if source is None:
        raise UploadRefusedError("what tells the row's shard names none", where, code="HW_6134")
    return source


def home_of(target: UploadTarget, device: Device, fields: Mapping[str, object]) -> str | None:
    """The source of an entry; of one that `source_of` refuses, that of the row as it was. None if neither is known."""
    for known in (fields, {**fields, "data": None}):
        with suppress(UploadRefusedError):
            return source_of(target, device, known)
    return None


def raise_unless_here(settings: UploadSettings, device: Device, entry: Entry) -> None:
    """Raise HW_6133 when the entry is for another source than these settings are of, or what `source_of` raises."""
    name = entry.fields.get("type")
    target = settings.targets.get(name) if isinstance(name, str) else None
    if target is None:
        return
    source = source_of(target, device, entry.fields)
    if source != settings.login.name:
        what = f"the transaction writes to two sources, {settings.login.name} and {source}"
        raise UploadRefusedError(what, str(name), _ONE_EACH, code="HW_6133")


_ONE_EACH = "have the app write to each in a transaction of its own, or set upload.across_sources"


@lru_cache(maxsize=64)
def _claim(claims: str, path: tuple[str, ...]) -> str | None:
    value = json.loads(claims)
    whole = ".".join(path)
    if whole in value:  # such as https://example.com/region: some issuers want a domain in the names of claims
        return _text(value[whole])
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return _text(value)


def _column(column: str, fields: Mapping[str, object]) -> str | None:
    given = {name: fields.get(name) for name in ("old", "data")}
    values = {name: each[column] for name, each in given.items() if isinstance(each, Mapping) and column in each}
    if not values or (fields.get("op") == WriteKind.PATCH.value and "old" not in values):  # `data` may be of a move
        raise UploadBlockedError(
            "the app does not send the column that tells the row's shard",
            column,
            "set trackPrevious for it in the client's schema, or have `shard` of the table name a claim",
            code="HW_6135",
        )
    found = {_text(value) for value in values.values()}
    return found.pop() if len(found) == 1 else None  # a row does not move to another shard


def _text(value: object) -> str | None:
    """A value as `shards` has it; None for one that can't be there."""
    if isinstance(value, Number):
        return value.plain
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)
