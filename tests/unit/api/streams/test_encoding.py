"""Content codings: what is chosen, and that stock decoders get every line back at once."""

from __future__ import annotations

import gzip
import random
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.api.errors import ApiError
from headwater.api.streams.encoding import GZIP, IDENTITY, SMALL, ZSTD, Coding, Pieces, WireForm, joined_crc
from headwater.api.streams.endpoint import choose_coding
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Chunk
from headwater.sync.formats import Ndjson
from tests.support.examples import examples

Decoder = Callable[[bytes], bytes]

CODINGS = [IDENTITY, ZSTD, GZIP]
by_name = pytest.mark.parametrize("coding", CODINGS, ids=lambda coding: coding.name)


def decoder(coding: Coding) -> Decoder:
    """What a client does with the bytes that arrive, one after another."""
    if coding is ZSTD:
        return zstandard.ZstdDecompressor().decompressobj().decompress  # of one frame only
    if coding is GZIP:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress
    return lambda received: received


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (None, "identity"),
        ("", "identity"),
        ("identity", "identity"),
        ("gzip, deflate", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0.5, gzip;q=0.8", "gzip"),
        ("zstd;q=0.5, gzip;q=0.5", "zstd"),
        ("zstd;q=0, gzip", "gzip"),
        ("gzip;q=0", "identity"),
        ("gzip;q=0.5, identity", "identity"),
        ("gzip;q=0.001", "gzip"),
        ("br, deflate", "identity"),
        ("*", "zstd"),
        ("*, zstd;q=0", "gzip"),
        ("*;q=0, identity", "identity"),
        ("identity;q=0, gzip;q=0.1", "gzip"),
        ("GZip", "gzip"),
        ("x-gzip", "gzip"),
        ("gzip;q=nonsense", "gzip"),
        (" , gzip ;q=1.000,", "gzip"),
    ],
)
def test_preferred_coding(header: str | None, chosen: str) -> None:
    assert choose_coding(header, (ZSTD, GZIP)).name == chosen


@pytest.mark.parametrize("header", ["identity;q=0", "*;q=0", "br, *;q=0"])
def test_no_acceptable_coding(header: str) -> None:
    with pytest.raises(ApiError, match="HW_6003"):
        choose_coding(header, (ZSTD, GZIP))


def is_of(coding: Coding, text: bytes, decoded: bytes) -> bool:
    """Whether this is what a piece of this text decodes to: zstd has spaces before it."""
    return decoded.lstrip(b" ") == text.lstrip(b" ") if coding is ZSTD else decoded == text


alphabets = st.sampled_from([b"a", b"ab", b'{"id":1, }\n', bytes(range(256))])
texts = st.builds(
    lambda alphabet, size, times, seed: bytes(random.Random(seed).choices(alphabet, k=size)) * times,
    alphabets,
    st.integers(0, 300) | st.integers(0, 20_000),
    st.integers(1, 4),
    st.integers(0, 99),
)


@by_name
@settings(max_examples=examples(100), deadline=None)
@given(texts=st.lists(texts, max_size=8))
def test_pieces_decode_as_they_arrive(coding: Coding, texts: list[bytes]) -> None:
    decode, wrapping = decoder(coding), coding.open()
    decode(wrapping.begin())
    for text in texts:
        assert is_of(coding, text, decode(wrapping.wrap(coding.encode(text))))
    assert decode(wrapping.end()) == b""


@given(texts=st.lists(texts, max_size=8))
def test_gzip_trailer(texts: list[bytes]) -> None:
    wrapping = GZIP.open()
    pieces = b"".join(wrapping.wrap(GZIP.encode(text)) for text in texts)
    sent = wrapping.begin() + pieces + wrapping.end()
    assert gzip.decompress(sent) == b"".join(texts)  # checks both


@given(st.binary(max_size=5000), st.binary(max_size=5000))
def test_combined_crc(first: bytes, second: bytes) -> None:
    assert joined_crc(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@by_name
def test_pieces_are_shared(coding: Coding) -> None:
    shared = coding.encode(b"a line that all get\n" * 500)
    for before in ([], [b"one\n"], [b"two\n", b"three\n" * 9999]):
        decode, wrapping = decoder(coding), coding.open()
        decode(wrapping.begin())
        for text in before:
            decode(wrapping.wrap(coding.encode(text)))
        assert is_of(coding, b"a line that all get\n" * 500, decode(wrapping.wrap(shared)))


@by_name
@pytest.mark.parametrize("raw", [True, False])
def test_order_of_lines_and_chunks(coding: Coding, raw: bool) -> None:
    form = WireForm(Ndjson(raw), coding)
    small = Chunk(b'{"op_id":"1"}', 1, OpId(1), more=False)
    large = Chunk(b'{"op_id":"2","text":"%b"}' % (b"x" * SMALL), 1, OpId(2), more=False)
    pieces = Pieces(coding)
    pieces.add(b'{"checkpoint":{}}\n')
    for chunk in (small, large, small):
        pieces.add(form.write("b", OpId(0), chunk))
    pieces.add(b'{"checkpoint_complete":{}}\n')
    decode, wrapping = decoder(coding), coding.open()
    decode(wrapping.begin())
    arrived = [decode(wrapping.wrap(piece)).strip().splitlines() for piece in pieces.all()]
    kinds = [[line.partition(b'"op_id":')[2][:3] or line[:12] for line in piece] for piece in arrived]
    assert kinds == [[b'{"checkpoint', b'"1"'], [b'"2"'], [b'"1"', b'{"checkpoint']]
