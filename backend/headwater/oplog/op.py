"""Ops: the entries of a bucket's history, and the JSON text in which a device receives them.

An op's id is not part of its body, because bodies are rendered before the store numbers them. A finished op is
`{"op_id":"<id>",` followed by its body.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NewType

import orjson

OpId = NewType("OpId", int)

CLEAR_BODY = '"op":"CLEAR","checksum":0}'
"""A CLEAR that begins or empties a bucket. It replaces no op, so its checksum is 0."""

_UINT32 = 0xFFFFFFFF
_dumps = orjson.dumps


@lru_cache(maxsize=4096)
def type_json(table: str) -> str:
    """An output table's name as JSON text."""
    return orjson.dumps(table).decode()


def put_checksum(digest: int) -> int:
    """The checksum of a PUT whose content has this digest, unsigned 32 bit."""
    return digest & _UINT32


def put_body(table: str, object_id: str, subkey: str, data: str, digest: int) -> str:
    """The body of a PUT; `data` is the row's JSON text."""
    return f"{put_opening(table, object_id, subkey, digest)}{_dumps(data).decode()}}}"


def put_opening(table: str, object_id: str, subkey: str, digest: int) -> str:
    """The beginning of a PUT's body: everything before the data."""
    start, middle = put_affixes(table, subkey)
    return f'{start}{_dumps(object_id).decode()},"checksum":{digest & _UINT32}{middle}'


def put_affixes(table: str, subkey: str) -> tuple[str, str]:
    """What a PUT's body has before the object id, and between checksum and data."""
    return f'"op":"PUT","object_type":{type_json(table)},"object_id":', f',"subkey":"{subkey}","data":'


def remove_body(table: str, object_id: str, subkey: str, checksum: int) -> str:
    """The body of a REMOVE."""
    return (
        f'"op":"REMOVE","object_type":{type_json(table)},"object_id":{_dumps(object_id).decode()},'
        f'"checksum":{checksum},"subkey":"{subkey}","data":null}}'
    )


def finished_op(op_id: int, body: str) -> str:
    """The JSON object of an op in a `data` line of the protocol."""
    return f'{{"op_id":"{op_id}",{body}'
