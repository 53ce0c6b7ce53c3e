"""Recognises the usual ways in which a shared secret is one thing for the issuer and another one here.

A token signed so is refused all the same: this only finds the words for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.api.auth.keys import Key
from headwater.api.auth.material import HMAC, SIGNATURES, decoded

_AS_TEXT = (
    "it is signed with the base64 text of the secret, not with the bytes that this text stands for: have the issuer"
    " decode it, or put the base64url form of that very text into the config"
)
_AS_BYTES = (
    "it is signed with the bytes that the configured secret, read as base64, stands for: have the issuer sign with the"
    " text, or configure the decoded secret"
)
_TRIMMED = "the configured secret has white space at an end, such as a line break, that the issuer's has not: remove it"
_UNTRIMMED = "the issuer's secret ends with a line break that the configured one has not: remove it there"


def signed_otherwise(tried: Sequence[Key], alg: str, message: bytes, signature: bytes) -> str | None:
    """What went wrong between the issuer's secret and ours, if it is one of the usual mistakes."""
    if alg not in HMAC:
        return None
    for key in tried:
        for secret, told in _variants(key):
            if secret and SIGNATURES[alg].verify(message, secret, signature):
                return told
    return None


def _variants(key: Key) -> Iterator[tuple[bytes, str]]:
    if not isinstance(key.material, bytes):
        return
    if key.written is not None:
        for text in (key.written, key.written.rstrip("=")):
            yield text.encode(), _AS_TEXT
    trimmed = key.material.strip()
    text = trimmed.decode("ascii", "replace")
    yield decoded(text) or b"", _AS_BYTES
    yield trimmed, _TRIMMED
    yield key.material + b"\n", _UNTRIMMED
