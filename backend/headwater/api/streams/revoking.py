"""Which open streams a revocation ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson

from headwater.api.auth.verify import Principal
from headwater.api.streams.connected import Connected
from headwater.storage.contract.revocations import Revocation, RevokedKind

REVOKED = "token revoked"
TERMINATED = "ended by an operator"
"""Why a stream ends."""

_CLAIMS: Mapping[RevokedKind, tuple[str, ...]] = {
    RevokedKind.TOKEN: ("jti",),
    RevokedKind.SESSION: ("session_id", "sid"),  # as Supabase and as OpenID Connect call it
}


class RevokedTokens:
    """The revocations of tokens that hold now. A stream that is opened by a token which was looked at before its
    revocation came is ended, too."""

    def __init__(self) -> None:
        self._held: dict[int, Revocation] = {}

    def add(self, revocations: Iterable[Revocation], now: float) -> None:
        """Some more; what is over is forgotten."""
        self._held |= {each.seq: each for each in revocations if each.kind is not RevokedKind.STREAMS}
        self._held = {seq: each for seq, each in self._held.items() if each.until >= now}

    def concern(self, stream: Connected) -> bool:
        """Whether the token of a stream is revoked."""
        return any(concerns(each, stream) for each in self._held.values())


def concerns(revocation: Revocation, stream: Connected) -> bool:
    """Whether a revocation is one of this stream, or of its token."""
    user = stream.user
    match revocation.kind:
        case RevokedKind.STREAMS:
            return which(revocation.value) in {(user.user_id, None), (user.user_id, stream.caller.client_id)}
        case RevokedKind.USER:
            return user.user_id == revocation.value and _issued(user) <= revocation.since
        case RevokedKind.SESSION | RevokedKind.TOKEN:
            return any(user.claims.get(name) == revocation.value for name in _CLAIMS[revocation.kind])


def streams_of(user: str, client: str | None) -> str:
    """The value of a revocation of a user's streams, or of those of one client."""
    return orjson.dumps([user, client]).decode()


def which(value: str) -> tuple[str, str | None]:
    """The inverse."""
    user, client = orjson.loads(value)
    return user, client


def _issued(user: Principal) -> float:
    issued = user.claims.get("iat")
    return float(issued) if isinstance(issued, int | float) else 0.0
