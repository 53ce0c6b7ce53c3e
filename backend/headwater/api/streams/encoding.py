"""Which coding a stream's lines go out in, and how they are put together in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from headwater.api.errors import NotAcceptableError
from headwater.api.streams.codings import GZIP, IDENTITY, ZSTD, Coding, Piece
from headwater.oplog.op import OpId
from headwater.storage.contract.store import Chunk
from headwater.sync import lines

SMALL = 4096
"""Bytes up to which lines are compressed together rather than each for itself and for all."""

_IDENTITY_WEIGHT = 1e-9  # of lines as they are, if not asked for: taken, but liked less than anything that is


@dataclass(frozen=True, slots=True)
class DataForm:
    """The form of `shared.cache` in which a stream takes chunks: a data line, in its coding unless it is a small one,
    which is better compressed together with its neighbours."""

    coding: Coding
    raw: bool

    def write(self, bucket: str, after: OpId, chunk: Chunk) -> Piece | bytes:
        line = lines.data(bucket, after, chunk, raw=self.raw)
        return line if len(line) <= SMALL else self.coding.encode(line)


class Pieces:
    """Collects lines in their order. `len` is the number of bytes so far, plain or encoded."""

    def __init__(self, coding: Coding, first: bytes) -> None:
        self._coding = coding
        self._pieces: list[Piece] = []
        self._plain = [first]
        self._size = len(first)

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


def choose_coding(accepted: str | None) -> Coding:
    """The coding of an Accept-Encoding header's choice: its highest weight, of equal ones zstd, then gzip. A client
    that names neither gets lines as they are. Raises NotAcceptableError when it takes none that we have."""
    weights = dict(_weighted(item) for item in (accepted or "").split(",") if item.strip())
    rest = weights.get("*", 0.0)
    offered: list[tuple[float, Coding]] = [(weights.get(coding.name, rest), coding) for coding in (ZSTD, GZIP)]
    identity = weights.get(IDENTITY.name, weights.get("*", _IDENTITY_WEIGHT))
    weight, coding = max([*offered, (identity, IDENTITY)], key=lambda each: each[0])
    if weight <= 0:
        raise NotAcceptableError("no content coding is acceptable", "Accept-Encoding header", "accept gzip or identity")
    return coding


def _weighted(item: str) -> tuple[str, float]:
    name, *parameters = (part.strip() for part in item.lower().split(";"))
    weights = [match[1] for text in parameters if (match := re.fullmatch(r"q=([01](?:\.[0-9]{0,3})?)", text))]
    return "gzip" if name == "x-gzip" else name, float(weights[0]) if weights else 1.0
