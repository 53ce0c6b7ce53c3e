"""Revoked tokens, which are refused although they have not expired: all of a user, of a session, or a single one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headwater.api.auth.claims import TOLERANCE, Principal
from headwater.api.auth.errors import TokenRevokedError
from headwater.api.errors import ApiError
from headwater.storage.contract.store import Revocation, RevokedKind

_CLAIMS: Mapping[RevokedKind, tuple[str, ...]] = {
    RevokedKind.SESSION: ("session_id", "sid"),  # as Supabase and as OpenID Connect call it
    RevokedKind.TOKEN: ("jti",),
}


class Revocations:
    """The revocations of tokens in force. That of a user applies to tokens issued until then, so that the user can sign
    in again; that of a session or a token applies for ever. The verifier checks them each time a token is used. Whoever
    keeps something open for a token, such as a stream, has to call `of` again after a change. Each change is atomic for
    other threads."""

    def __init__(self, held: Iterable[Revocation] = (), *, complete: bool = True) -> None:
        """Unless `complete`, no token is accepted until `known` was called."""
        self._held: Mapping[tuple[RevokedKind, str], Revocation] = {}
        self._complete = complete
        self.replace(held)

    def __len__(self) -> int:
        return len(self._held)

    def replace(self, held: Iterable[Revocation]) -> None:
        """Replace all revocations but those of streams. Of several with one kind and value, the latest counts."""
        merged: dict[tuple[RevokedKind, str], Revocation] = {}
        for each in held:
            known = merged.get((each.kind, each.value))
            if each.kind is not RevokedKind.STREAMS and (known is None or known.since < each.since):
                merged[each.kind, each.value] = each
        self._held = merged

    def add(self, *revocations: Revocation) -> None:
        """Add revocations. The time that this takes grows with the number of all, so add many in one call."""
        self.replace([*self._held.values(), *revocations])

    def known(self) -> None:
        """Note that all revocations in force have been added."""
        self._complete = True

    def forget(self, now: float, longest_life: float) -> None:
        """Drop revocations whose tokens have all expired, since no token is valid for over `longest_life` seconds."""
        self.replace(each for each in self._held.values() if each.since + longest_life + 2 * TOLERANCE > now)

    def of(self, user: Principal) -> Revocation | None:
        """The revocation that applies to the user's token, or None."""
        held = self._held
        if not held:
            return None
        for_user = held.get((RevokedKind.USER, user.user_id))
        if for_user is not None and _issued(user) <= for_user.since:
            return for_user
        asked = ((kind, user.claims.get(name)) for kind, names in _CLAIMS.items() for name in names)
        found = (held.get((kind, value)) for kind, value in asked if isinstance(value, str))
        return next((each for each in found if each is not None), None)

    def check(self, user: Principal) -> None:
        """Raise TokenRevokedError when the user's token is revoked, or HW_6031 before they are known."""
        self._raise_unless_known()
        revocation = self.of(user)
        if revocation is not None:
            raise TokenRevokedError(f"the token was revoked, by its {revocation.kind.value}", fix="sign in again")

    def ended(self, session: str) -> bool:
        """Whether a session of the studio was ended. Raises HW_6031 before revocations are known."""
        self._raise_unless_known()
        return (RevokedKind.STUDIO, session) in self._held

    def _raise_unless_known(self) -> None:
        if not self._complete:
            raise ApiError("it is not known yet which tokens are revoked", fix="try again", code="HW_6031")


def _issued(user: Principal) -> float:
    issued = user.claims["iat"]
    assert isinstance(issued, int | float)  # a principal's claims were checked
    return float(issued)
