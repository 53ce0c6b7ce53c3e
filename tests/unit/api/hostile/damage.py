"""Damage to bytes. All of it comes from a `random.Random`: the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

_TOKENS: Final = (
    b"\0", b"\xff", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xef\xbb\xbf", b"\xe2\x80\xa8",
    b"\r", b"\n", b"\r\n", b"\r\n\r\n", b" ", b"\t", b":", b";", b",", b"=", b"&", b"?", b"#", b"/", b"//", b"..",
    b"%", b"%00", b"%2e", b"%zz", b"%ff", b"\\", b"'", b'"', b"{", b"}", b"[", b"]", b"-1", b"0", b"1e999",
    b"9" * 30, b"18446744073709551616", b"2147483648", b"null", b"true", b"NaN", b"\\u0000", b"\\ud800", b"a" * 300,
)  # fmt: skip
_NUMBERS: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)

_Way = Callable[[bytearray, int, random.Random], None]


def damaged(chance: random.Random, content: bytes, most: int = 3) -> bytes:
    """The bytes after one to `most` pieces of damage."""
    found = bytearray(content)
    for _ in range(chance.randint(1, most)):
        chance.choice(_WAYS)(found, chance.randrange(len(found) + 1), chance)
    return bytes(found)


def split(chance: random.Random, content: bytes) -> Sequence[bytes]:
    """The bytes in pieces: mostly one, else some, now and then each byte by itself."""
    kind = chance.random()
    if kind < 0.6 or len(content) < 2:
        return (content,)
    if kind < 0.97 or len(content) > 600:
        places = sorted({chance.randrange(1, len(content)) for _ in range(chance.randint(1, 5))})
    else:
        places = list(range(1, len(content)))
    return [content[start:end] for start, end in zip([0, *places], [*places, len(content)], strict=True)]


def _flip(content: bytearray, at: int, chance: random.Random) -> None:
    if at < len(content):
        content[at] ^= 1 << chance.randrange(8)


def _set(content: bytearray, at: int, chance: random.Random) -> None:
    content[at : at + 1] = bytes([chance.randrange(256)])


def _insert(content: bytearray, at: int, chance: random.Random) -> None:
    content[at:at] = chance.choice(_TOKENS)


def _replace(content: bytearray, at: int, chance: random.Random) -> None:
    content[at : at + chance.randint(1, 8)] = chance.choice(_TOKENS)


def _delete(content: bytearray, at: int, chance: random.Random) -> None:
    del content[at : at + chance.randint(1, 20)]


def _repeat(content: bytearray, at: int, chance: random.Random) -> None:
    part = content[at : at + chance.randint(1, 30)]
    content[at:at] = part * chance.choice((1, 2, 20))


def _cut(content: bytearray, at: int, _: random.Random) -> None:
    del content[at:]


def _swap(content: bytearray, at: int, chance: random.Random) -> None:
    other = chance.randrange(len(content) + 1)
    start, end = min(at, other), max(at, other)
    content[start:end] = content[end : end + 8] + content[start:end]


def _number(content: bytearray, at: int, chance: random.Random) -> None:
    """A length or an id at some bound."""
    width = chance.choice((1, 2, 3, 4))
    value = chance.choice(_NUMBERS) & ((1 << 8 * width) - 1)
    content[at : at + width] = value.to_bytes(width, chance.choice(("big", "little")))


_WAYS: Final[tuple[_Way, ...]] = (
    _flip, _flip, _set, _insert, _insert, _replace, _delete, _repeat, _cut, _swap, _number,
)  # fmt: skip
