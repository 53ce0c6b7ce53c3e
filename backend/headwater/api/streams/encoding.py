"""How a stream's lines are put together in its coding."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from headwater.api.streams.codings import IDENTITY, Coding, Piece
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.sync.formats import Format
from headwater.sync.lines import Line

SMALL = 4096
"""Bytes up to which lines are compressed together rather than each for itself and for all."""


@dataclass(frozen=True, slots=True)
class WireForm:
    """What a stream's lines look like on the wire. A form of `shared.cache`: a chunk is a data line, in the coding
    unless it is a small one, which is better compressed together with its neighbours."""

    format: Format
    coding: Coding

    def write(self, bucket: str, after: OpId, chunk: Chunk) -> Piece | bytes:
        line = self.format.data(bucket, after, chunk)
        return line if len(line) <= SMALL else self.coding.encode(line)

    def piece(self, line: Line) -> Piece:
        """One line by itself."""
        return encode(self.coding, self.format.line(line))


class Pieces:
    """Collects lines in their order. `len` is the number of bytes so far, plain or encoded."""

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
        """What there is to send; to be called once, at the end."""
        self._encode()
        return self._pieces

    def _encode(self) -> None:
        if plain := b"".join(self._plain):
            self._pieces.append(encode(self._coding, plain))
        self._plain.clear()


def encode(coding: Coding, plain: bytes) -> Piece:
    """Lines as a piece. Small ones are remembered for a while: a change is told to many clients in the same words."""
    return coding.encode(plain) if len(plain) > SMALL or coding is IDENTITY else _encode_small(coding, plain)


@lru_cache(maxsize=256)
def _encode_small(coding: Coding, plain: bytes) -> Piece:
    return coding.encode(plain)
