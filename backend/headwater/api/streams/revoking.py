"""Which open streams a revocation ends, and which revocations apply to tokens."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from headwater.api.auth.revocations import Revocation as TokenRevocation
from headwater.api.auth.revocations import Revoked
from headwater.api.streams.connected import Connected
from headwater.storage.contract.revocations import Revocation, RevokedKind

TOKENS_KEPT = 8 * 86_400.0
"""Seconds for which a revocation of tokens is kept: longer than any token is valid."""

REVOKED = "token revoked"
TERMINATED = "ended by an operator"
"""Why a stream ends."""


def of_tokens(revocations: Iterable[Revocation]) -> list[TokenRevocation]:
    """The revocations that apply to tokens, in the form that the verifier takes."""
    return [
        TokenRevocation(Revoked(each.kind.value), each.value, each.since)
        for each in revocations
        if each.kind is not RevokedKind.STREAMS
    ]


def terminates(revocation: Revocation, stream: Connected) -> bool:
    """Whether a revocation of streams ends this stream. Those of tokens are up to `Revocations`."""
    if revocation.kind is not RevokedKind.STREAMS:
        return False
    user = stream.user.user_id
    return _named(revocation.value) in {(user, None), (user, stream.caller.client_id)}


def streams_of(user: str, client: str | None) -> str:
    """The value of a revocation that ends the streams of a user, or of one client of the user."""
    return orjson.dumps([user, client]).decode()


def _named(value: str) -> tuple[str, str | None]:
    user, client = orjson.loads(value)
    return user, client
