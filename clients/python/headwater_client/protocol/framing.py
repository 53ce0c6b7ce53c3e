"""Cuts the bytes of a response into lines, whatever pieces they come in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol

from headwater_client.errors import MissingExtra, ProtocolError
from headwater_client.protocol.lines import Line, parse_document, parse_line

NDJSON: Final = "application/x-ndjson"
BSON: Final = "application/vnd.powersync.bson-stream"

LONGEST: Final = 256 << 20
"""Bytes of one line: no server sends a row this large."""


class Framing(Protocol):
    """Turns pieces of a body into lines."""

    def feed(self, piece: bytes) -> Iterator[Line]:
        """The lines that this piece completes. Raises `ProtocolError`."""

    def end(self) -> None:
        """The body has ended. Raises `ProtocolError` where that is in the middle of a line."""


class JsonLines:
    """One JSON object per line of text."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, piece: bytes) -> Iterator[Line]:
        whole, newline, rest = piece.rpartition(b"\n")
        if not newline:
            self._hold(piece)
            return
        self._pieces.append(whole)
        texts, self._pieces, self._held = b"".join(self._pieces), [], 0
        self._hold(rest)
        for text in texts.split(b"\n"):
            line = parse_line(text) if text and not text.isspace() else None
            if line is not None:
                yield line

    def end(self) -> None:
        if b"".join(self._pieces).strip():
            raise ProtocolError("the stream ended in the middle of a line")

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._held += len(piece)
            if self._held > LONGEST:
                raise ProtocolError(f"a line is longer than {LONGEST >> 20} MiB")


class BsonDocuments:
    """BSON documents one after another, each beginning with its length."""

    def __init__(self) -> None:
        self._bson = _bson()
        self._held = bytearray()

    def feed(self, piece: bytes) -> Iterator[Line]:
        self._held += piece
        start = 0
        while len(self._held) - start >= 4:
            size = int.from_bytes(self._held[start : start + 4], "little", signed=True)
            if not 5 <= size <= LONGEST:
                raise ProtocolError(f"a BSON document cannot have {size} bytes")
            if len(self._held) - start < size:
                break
            line = self._line(bytes(self._held[start : start + size]))
            start += size
            if line is not None:
                yield line
        del self._held[:start]

    def end(self) -> None:
        if self._held:
            raise ProtocolError("the stream ended in the middle of a BSON document")

    def _line(self, text: bytes) -> Line | None:
        try:
            document: Mapping[str, object] = self._bson.decode(text)
        except self._bson.errors.BSONError as error:
            raise ProtocolError(f"a BSON document cannot be read: {error}") from None
        return parse_document(document)


def framing_of(content_type: str) -> Framing:
    """How a response of this type is cut: anything that is not BSON is taken as JSON lines."""
    return BsonDocuments() if content_type == BSON else JsonLines()


def accepted(*, bson: bool) -> str:
    """The Accept header: BSON is asked for only by who wants it."""
    if not bson:
        return NDJSON
    _bson()
    return f"{BSON};q=0.9, {NDJSON};q=0.8"


def _bson() -> Any:
    try:
        import bson
    except ImportError:
        raise MissingExtra("a BSON stream", "bson") from None
    return bson
