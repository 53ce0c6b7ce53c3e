"""How lines are written: as JSON texts or as BSON documents.

Chunks come from the store as finished JSON. NDJSON passes them on as they are; BSON has to read every op, which takes
some four microseconds each, so a client that takes both gets NDJSON.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import bson
import orjson

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.sync.lines import Line


class Format(Hashable, Protocol):
    """Writes lines down. Equal formats write a line in the same way. Clients compare `media_type` exactly."""

    media_type: ClassVar[str]

    def line(self, line: Line) -> bytes: ...

    def data(self, bucket: str, after: OpId, chunk: Chunk) -> bytes:
        """One chunk of one bucket, after op `after`."""


@dataclass(frozen=True, slots=True)
class Ndjson:
    """One JSON object to a line of text. With `raw`, rows are JSON text within it; without, nested objects, for clients
    from before that."""

    media_type: ClassVar[str] = "application/x-ndjson"
    raw: bool

    def line(self, line: Line) -> bytes:
        # concatenation copies orjson's oversized result into one of the right size
        return orjson.dumps(line) + b"\n"

    def data(self, bucket: str, after: OpId, chunk: Chunk) -> bytes:
        more = b"true" if chunk.more else b"false"
        return b'{"data":{"bucket":%b,"data":[%b],"has_more":%b,"after":"%d","next_after":"%d"}}\n' % (
            orjson.dumps(bucket),
            chunk.ops if self.raw else _unwrapped(chunk.ops),
            more,
            after,
            chunk.next_after,
        )


@dataclass(frozen=True, slots=True)
class Bson:
    """One BSON document after another, each led by its length. Rows are JSON text."""

    media_type: ClassVar[str] = "application/vnd.powersync.bson-stream"

    def line(self, line: Line) -> bytes:
        return bson.encode(line)

    def data(self, bucket: str, after: OpId, chunk: Chunk) -> bytes:
        content = {
            "bucket": bucket,
            "data": orjson.loads(b"[%b]" % chunk.ops),
            "has_more": chunk.more,
            "after": str(after),
            "next_after": str(chunk.next_after),
        }
        return bson.encode({"data": content})


def _unwrapped(ops: bytes) -> bytes:
    """Rows as nested objects instead of text."""
    parsed: list[dict[str, object]] = orjson.loads(b"[%b]" % ops)
    for op in parsed:
        row = op.get("data")
        if isinstance(row, str):
            op["data"] = orjson.Fragment(row)
    return orjson.dumps(parsed)[1:-1]
