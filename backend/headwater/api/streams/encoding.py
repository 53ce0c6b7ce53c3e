"""Content codings: compress lines in pieces that can be sent to any client.

A piece refers to nothing before it, and between two pieces a stream keeps only a checksum and a length. So an idle
stream costs no memory, a small line is never held back, and a piece that was compressed once serves every client. All
pieces of a stream are parts of one gzip member or one zstd frame, because many clients stop after the first of several.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import zstandard

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.sync.formats import Format
from headwater.sync.lines import Line

GZIP_LEVEL = 1
ZSTD_LEVEL = 1
"""Higher levels cost two to three times as much and take off a few percent: ids and digests do not compress."""

ZSTD_WINDOW_LOG = 19  # log2 of the bytes that a client has to keep; no piece refers back further


@dataclass(frozen=True, slots=True)
class EncodedPiece:
    """Some whole lines as they go out, and the length of what they decode to; for gzip's trailer, its CRC-32 too."""

    content: bytes
    length: int
    crc: int = 0

    def __len__(self) -> int:
        return len(self.content)


class Wrapping:
    """Adds header and trailer to the pieces of one stream. Wrap pieces in the order in which they are sent."""

    __slots__ = ("_head", "_tail")

    def __init__(self, head: bytes, tail: bytes) -> None:
        self._head = head
        self._tail = tail

    def begin(self) -> bytes:
        """The header. Joined to the first piece, which many streams share, it would make a copy for each."""
        return self._head

    def wrap(self, piece: EncodedPiece) -> bytes:
        return piece.content

    def end(self) -> bytes:
        """The trailer of a stream that ends normally."""
        return self._tail


class Coding:
    """A content coding: this one compresses nothing. All streams share one instance of each, which is safe to use from
    several threads."""

    name = "identity"
    _head = _last_block = b""

    def encode(self, plain: bytes) -> EncodedPiece:
        return EncodedPiece(plain, len(plain))

    def open(self) -> Wrapping:
        return Wrapping(self._head, self._last_block)


class GzipCoding(Coding):
    """A piece is a run of deflate blocks that ends at a byte boundary, with a full flush: the next piece does not refer
    back to it."""

    name = "gzip"
    _head = b"\x1f\x8b\x08\0\0\0\0\0\x04\xff"
    _last_block = b"\x03\0"

    def encode(self, plain: bytes) -> EncodedPiece:
        compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        content = compressor.compress(plain) + compressor.flush(zlib.Z_FULL_FLUSH)
        return EncodedPiece(content, len(plain), zlib.crc32(plain))

    def open(self) -> Wrapping:
        return _Summed(self._head, self._last_block)


class _Summed(Wrapping):
    """Ends with the CRC-32 and length of all plain lines that were sent."""

    __slots__ = ("_crc", "_length")

    def __init__(self, head: bytes, tail: bytes) -> None:
        super().__init__(head, tail)
        self._crc = 0
        self._length = 0

    def wrap(self, piece: EncodedPiece) -> bytes:
        self._crc = joined_crc(self._crc, piece.crc, piece.length)
        self._length = (self._length + piece.length) & 0xFFFFFFFF
        return super().wrap(piece)

    def end(self) -> bytes:
        return super().end() + self._crc.to_bytes(4, "little") + self._length.to_bytes(4, "little")


class ZstdCoding(Coding):
    """A piece is the blocks of a zstd frame, without the frame's header and last block.

    Blocks of different frames can follow one another, with one exception: a block may refer to the last three match
    distances by their number ("repeat offsets"), and at the beginning of a frame these are 1, 4 and 8. So each piece
    begins with a block that repeats spaces at the distances 8, 4 and 1. A client gets seventeen spaces before a line,
    which JSON ignores.
    """

    name = "zstd"
    _head = zstandard.FRAME_HEADER + bytes((0, (ZSTD_WINDOW_LOG - 10) << 3))
    _last_block = b"\x01\0\0"
    _reset = bytes.fromhex(
        "420000 20"  # an RLE block: a space, eight times
        "440000 00 03 44 00 00 b8dd4a"  # no literals; three matches of length 3; 3 bytes with their distances
    )

    def __init__(self) -> None:
        self._local = threading.local()  # compressors are not thread-safe

    def encode(self, plain: bytes) -> EncodedPiece:
        compression = self._compressor().compressobj()
        blocks = compression.compress(plain) + compression.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        return EncodedPiece(self._reset + blocks.removeprefix(self._head), len(plain))

    def _compressor(self) -> zstandard.ZstdCompressor:
        compressor: zstandard.ZstdCompressor | None = getattr(self._local, "compressor", None)
        if compressor is None:
            parameters = zstandard.ZstdCompressionParameters.from_level(
                ZSTD_LEVEL, window_log=ZSTD_WINDOW_LOG, write_content_size=False, write_checksum=False
            )
            compressor = self._local.compressor = zstandard.ZstdCompressor(compression_params=parameters)
        return compressor


IDENTITY = Coding()
GZIP = GzipCoding()
ZSTD = ZstdCoding()


# CRC-32 is linear: the CRC of two texts joined is the CRC of the first, continued over as many zero bytes as the second
# text has, xor the CRC of the second. Tables say what 2^n zero bytes make of each byte of a CRC.


def joined_crc(first: int, second: int, length: int) -> int:
    """CRC-32 of two texts joined, from the CRC-32 of each and the length of the second."""
    power = 0
    while length:
        if length & 1:
            first = _carried(first, power)
        length >>= 1
        power += 1
    return first ^ second


def _carried(crc: int, power: int) -> int:
    low, second, third, high = _tables(power)
    return low[crc & 0xFF] ^ second[crc >> 8 & 0xFF] ^ third[crc >> 16 & 0xFF] ^ high[crc >> 24]


@cache
def _tables(power: int) -> tuple[list[int], list[int], list[int], list[int]]:
    def over(crc: int) -> int:
        if power == 0:
            return zlib.crc32(b"\0", crc ^ 0xFFFFFFFF) ^ 0xFFFFFFFF
        return _carried(_carried(crc, power - 1), power - 1)

    def table(shift: int) -> list[int]:
        return [over(byte << shift) for byte in range(256)]

    return table(0), table(8), table(16), table(24)


SMALL = 4096
"""Lines of up to this many bytes are compressed together with their neighbours. A larger one is compressed by itself,
and the result is shared by all clients."""


@dataclass(frozen=True, slots=True)
class WireForm:
    """Format and coding of a stream's lines. Implements `cache.Form`: a chunk becomes a data line, which
    is encoded unless it is small (see SMALL)."""

    format: Format
    coding: Coding
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.format, self.coding)))

    def __hash__(self) -> int:
        return self._hash  # it is part of keys that are looked up for every stream and change

    def write(self, bucket: str, after: OpId, chunk: Chunk) -> EncodedPiece | bytes:
        line = self.format.data(bucket, after, chunk)
        return line if len(line) <= SMALL else self.coding.encode(line)

    def piece(self, line: Line) -> EncodedPiece:
        """Encode one line by itself."""
        return encode(self.coding, self.format.line(line))


@dataclass(frozen=True, slots=True)
class Batch:
    """Encoded lines for the client. With `done`, they complete the checkpoint, and there is nothing to send until the
    next one."""

    pieces: Sequence[EncodedPiece] = ()
    ops: int = 0
    done: bool = True


class Pieces:
    """Collects lines in order. `len` is their number of bytes so far, encoded or still plain."""

    def __init__(self, coding: Coding) -> None:
        self._coding = coding
        self._pieces: list[EncodedPiece] = []
        self._plain: list[bytes] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, content: EncodedPiece | bytes) -> None:
        self._size += len(content)
        if isinstance(content, bytes):
            self._plain.append(content)
        else:
            self._encode()
            self._pieces.append(content)

    def all(self) -> list[EncodedPiece]:
        """The pieces to send. Call it once, at the end."""
        self._encode()
        return self._pieces

    def _encode(self) -> None:
        if plain := b"".join(self._plain):
            self._pieces.append(encode(self._coding, plain))
        self._plain.clear()


def encode(coding: Coding, plain: bytes) -> EncodedPiece:
    """Encode lines. Small pieces are cached, since many clients are sent the same change."""
    return coding.encode(plain) if len(plain) > SMALL or coding is IDENTITY else _encode_small(coding, plain)


@lru_cache(maxsize=256)
def _encode_small(coding: Coding, plain: bytes) -> EncodedPiece:
    return coding.encode(plain)
