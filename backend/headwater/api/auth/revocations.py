"""Tokens that are no good any more although they have not expired: of a user, of a session, or one alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from headwater.api.auth.claims import TOLERANCE, Principal
from headwater.api.auth.errors import TokenRevokedError


class Revoked(Enum):
    """What a revocation is of."""

    USER = "sub"
    SESSION = "session"
    TOKEN = "jti"  # noqa: S105 - the name of a claim


_CLAIMS: Mapping[Revoked, tuple[str, ...]] = {
    Revoked.SESSION: ("session_id", "sid"),  # as Supabase and as OpenID Connect call it
    Revoked.TOKEN: ("jti",),
}


@dataclass(frozen=True, slots=True)
class Revocation:
    """Since a time, in seconds since 1970. A user's is of the tokens issued until then, so that who signs in again gets
    in; a session's and a token's are for good."""

    kind: Revoked
    value: str
    since: float


class Revocations:
    """What is revoked now. It is looked at whenever a token is used, so a revocation holds from the next use on;
    whoever keeps something open for a token asks `of` again after a change. Readers see a change as a whole."""

    def __init__(self, held: Iterable[Revocation] = ()) -> None:
        self._held: Mapping[tuple[Revoked, str], Revocation] = {}
        self.replace(held)

    def __len__(self) -> int:
        return len(self._held)

    def replace(self, held: Iterable[Revocation]) -> None:
        """From now on exactly these."""
        merged: dict[tuple[Revoked, str], Revocation] = {}
        for each in held:
            known = merged.get((each.kind, each.value))
            if known is None or known.since < each.since:
                merged[each.kind, each.value] = each
        self._held = merged

    def add(self, *revocations: Revocation) -> None:
        """Some more. Of several of the same user the latest counts. Takes time in the number of all, so many are to be
        added at once."""
        self.replace([*self._held.values(), *revocations])

    def forget(self, now: float, longest_life: float) -> None:
        """Leave out those whose tokens have all expired by themselves."""
        self.replace(each for each in self._held.values() if each.since + longest_life + 2 * TOLERANCE > now)

    def of(self, user: Principal) -> Revocation | None:
        """What revoked the user's token, if something did."""
        held = self._held
        if not held:
            return None
        for_user = held.get((Revoked.USER, user.user_id))
        if for_user is not None and _issued(user) <= for_user.since:
            return for_user
        asked = ((kind, user.claims.get(name)) for kind, names in _CLAIMS.items() for name in names)
        found = (held.get((kind, value)) for kind, value in asked if isinstance(value, str))
        return next((each for each in found if each is not None), None)

    def check(self, user: Principal) -> None:
        """Raises TokenRevokedError."""
        revocation = self.of(user)
        if revocation is not None:
            raise TokenRevokedError(f"the token was revoked, by its {revocation.kind.value}", fix="sign in again")


def _issued(user: Principal) -> float:
    issued = user.claims["iat"]
    assert isinstance(issued, int | float)  # a principal's claims were checked
    return float(issued)
