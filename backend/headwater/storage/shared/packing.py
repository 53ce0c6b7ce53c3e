"""Compression of segments. Each frame carries its own checksum, so that damage on the disk is found before it reaches a
device."""

from __future__ import annotations

import zstandard

from headwater.storage.contract.store import StoreError


def compressor(level: int) -> zstandard.ZstdCompressor:
    """A compressor for segment contents."""
    return zstandard.ZstdCompressor(level=level, write_checksum=True)


def unpacked(blob: bytes) -> bytes:
    """The decompressed content of a segment. Raises StoreError."""
    try:
        return zstandard.decompress(blob)
    except (zstandard.ZstdError, MemoryError) as error:
        raise StoreError(
            f"a segment of the history is damaged: {error}", "segment_blobs", "run `headwater audit --repair`"
        ) from error
