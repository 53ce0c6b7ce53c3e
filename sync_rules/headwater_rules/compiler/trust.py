"""Who decides a value or a condition: the token, the client, or neither.

The client may send any value for its own parameters, so the token has to have a part in what selects rows whatever the
client sends. Every fragment carries a `Trust`. It is exact where only one of the two takes part; where both do, only
operators that are known to keep the token's part keep it, and for all others the client decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import groupby


class TokenProof(IntEnum):
    """What the outcome of a condition says about the token."""

    NONE = 0
    """The client can bring it about, whatever the token says."""
    REPEATED = 1
    """The client has sent a value that the token has too."""
    TOKEN = 2
    """The token decides."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Which parts of the request a value depends on. `bound`: equal values mean equal values of the token. `true` and
    `untrue` say what is known of the token if the value is true, and if it is false or null. `repeated` are the
    client's values, as SQL, that the token has too if the value is true and nothing else of the token made it so."""

    token: bool = False
    client: bool = False
    bound: bool = False
    true: TokenProof = TokenProof.NONE
    untrue: TokenProof = TokenProof.NONE
    repeated: frozenset[object] = frozenset()

    @property
    def mixed(self) -> bool:
        return self.token and self.client


NEITHER = Trust()
TOKEN = Trust(token=True, bound=True, true=TokenProof.TOKEN, untrue=TokenProof.TOKEN)
CLIENT = Trust(client=True)
_TOGETHER = {(each.token, each.client): each for each in (NEITHER, TOKEN, CLIENT, Trust(token=True, client=True))}


def together(parts: Iterable[Trust]) -> Trust:
    """The trust in a value that is computed from several in an unknown way."""
    found = list(parts)
    token, client = any(part.token for part in found), any(part.client for part in found)
    return _TOGETHER[token, client]


def element(array: Trust) -> Trust:
    """An element of an array. That an array has a value of the token says nothing of its other elements."""
    return together([array])


def every(parts: list[Trust]) -> Trust:
    """`AND`."""
    found = together(parts)
    if not found.mixed:
        return found
    repeated = frozenset[object]().union(*(part.repeated for part in parts))
    true, untrue = max(part.true for part in parts), min(part.untrue for part in parts)
    return replace(found, true=true, untrue=untrue, repeated=repeated)


def any_of(parts: list[Trust]) -> Trust:
    """`OR`."""
    found = together(parts)
    if not found.mixed:
        return found
    doubtful = [part.repeated for part in parts if part.true is not TokenProof.TOKEN]
    repeated = frozenset[object].intersection(*doubtful) if doubtful else frozenset[object]()
    true, untrue = min(part.true for part in parts), max(part.untrue for part in parts)
    return replace(found, true=true, untrue=untrue, repeated=repeated)


def opposite(trust: Trust) -> Trust:
    """1 if the value is false or null, else 0."""
    return replace(trust, true=trust.untrue, untrue=trust.true, repeated=frozenset()) if trust.mixed else trust


def one_of(values: list[Trust], conditions: list[Trust]) -> Trust:
    """One of the values, by conditions."""
    found = together([*values, *conditions])
    return replace(found, bound=all(value.bound for value in values)) if found.mixed else found


def holding(parts: list[Trust]) -> Trust:
    """A value that shows each of its parts, such as a JSON array."""
    found = together(parts)
    return replace(found, bound=any(part.bound for part in parts)) if found.mixed else found


def chained(parts: list[Trust]) -> Trust:
    """A text of several. The token's part shows if constant text stands between it and the client's; without any, the
    client could continue it to the value of another token. Parts of the token alone don't separate: they may be
    empty."""
    found = together(parts)
    between = [together(group) for constant, group in groupby(parts, NEITHER.__eq__) if not constant]
    return replace(found, bound=any(each.bound and not each.client for each in between)) if found.mixed else found


def repeating(left: Trust, right: Trust, written: tuple[object, object | None]) -> Trust:
    """`left = right`, which are `written` in SQL: None for an element of an array, of which there may be others."""
    found = together([left, right])
    if not found.mixed or not (left.bound or right.bound):
        return found
    repeated = [text for text, other in zip(written, (right, left), strict=True) if other.bound and text is not None]
    proof = TokenProof.TOKEN if NEITHER in {left, right} else TokenProof.REPEATED
    return replace(found, true=proof, repeated=frozenset(repeated))
