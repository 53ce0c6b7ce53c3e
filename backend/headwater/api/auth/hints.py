"""Recognises common mistakes by which a shared secret differs between the issuer and the config.

The token is refused all the same; this only explains why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.api.auth.keys import Key
from headwater.api.auth.material import HMAC, SIGNATURES, decoded

_AS_TEXT = (
    "it is signed with the base64 text of the secret, not with the bytes that the text decodes to: have the issuer"
    " decode it, or configure that text, itself encoded as base64url"
)
_AS_BYTES = (
    "the configured secret is base64 text, and the token is signed with the bytes that it decodes to: have the issuer"
    " sign with the text, or configure the decoded secret"
)
_TRIMMED = "the configured secret begins or ends with white space, and the issuer's does not: remove it"
_UNTRIMMED = "the issuer's secret ends with a line break, and the configured one does not: remove it there"


def signed_otherwise(tried: Sequence[Key], alg: str, message: bytes, signature: bytes) -> str | None:
    """How the issuer's secret differs from the configured one, as an explanation for the client. None when no known
    mistake fits."""
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
