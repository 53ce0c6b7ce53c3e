"""Joins the lines of a stream into encoded pieces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from headwater.api.streams.codings import IDENTITY, Coding, Piece
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.sync.formats import Format
from headwater.sync.lines import Line

SMALL = 4096
"""Lines of up to this many bytes are compressed together with their neighbours. A larger one is compressed by itself,
and the result is shared by all clients."""


@dataclass(frozen=True, slots=True)
class WireForm:
    """Format and coding of a stream's lines. Implements the form of `shared.cache`: a chunk becomes a data line, which
    is encoded unless it is small (see SMALL)."""

    format: Format
    coding: Coding
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.format, self.coding)))

    def __hash__(self) -> int:
        return self._hash  # it is part of keys that are looked up for every stream and change

    def write(self, bucket: str, after: OpId, chunk: Chunk) -> Piece | bytes:
        line = self.format.data(bucket, after, chunk)
        return line if len(line) <= SMALL else self.coding.encode(line)

    def piece(self, line: Line) -> Piece:
        """Encode one line by itself."""
        return encode(self.coding, self.format.line(line))


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded lines for the client. With `done`, they complete the checkpoint, and there is nothing to send until the
    next one."""

    pieces: Sequence[Piece] = ()
    ops: int = 0
    done: bool = True


class Pieces:
    """Collects lines in order. `len` is their number of bytes so far, encoded or still plain."""

    def __init__(self, coding: Coding) -> None:
        self._coding = coding
        self._pieces: list[Piece] = []
        self._plain: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, content: Piece | bytes) -> None:
        self._size += len(content)
        if isinstance(content, bytes):
            self._plain.append(content)
        else:
            self._encode()
            self._pieces.append(content)

    def all(self) -> list[Piece]:
        """The pieces to send. Call it once, at the end."""
        self._encode()
        return self._pieces

    def _encode(self) -> None:
        if plain := b"".join(self._plain):
            self._pieces.append(encode(self._coding, plain))
        self._plain.clear()


def encode(coding: Coding, plain: bytes) -> Piece:
    """Encode lines. Small pieces are cached, since many clients are sent the same change."""
    return coding.encode(plain) if len(plain) > SMALL or coding is IDENTITY else _encode_small(coding, plain)


@lru_cache(maxsize=256)
def _encode_small(coding: Coding, plain: bytes) -> Piece:
    return coding.encode(plain)
