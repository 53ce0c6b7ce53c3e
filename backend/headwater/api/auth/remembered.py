"""Remembers verified tokens, so that the signature of a device that connects again is not checked again."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cachetools import LRUCache

from headwater.api.auth.claims import Principal, is_over
from headwater.api.auth.keys import Key

CAPACITY = 16 * 1024 * 1024
"""About how many bytes all remembered tokens take: some 8,000 of usual size."""

LONGEST_KEPT = 8192
"""Longer tokens are verified each time."""

_ENTRY_BYTES = 800  # besides the claims


@dataclass(frozen=True, slots=True)
class _Entry:
    key: Key
    user: Principal
    size: int


class RememberedTokens:
    """The users of verified tokens, by a hash of the token: tokens themselves are not kept. The least recently used go
    first. Not thread-safe: use it in one event loop."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._held: LRUCache[bytes, _Entry] = LRUCache(capacity, lambda entry: entry.size)

    def user_of(self, token: str, trusted: Sequence[Key], now: float) -> Principal | None:
        """The user of a token that was verified before, while it has not expired and the key that signed it is still
        among the trusted ones. The caller checks revocations."""
        entry = self._held.get(name := _name(token)) if len(token) <= LONGEST_KEPT else None
        if entry is None:
            return None
        if is_over(entry.user, now) or entry.key not in trusted:  # an equal one: keys are fetched again and again
            del self._held[name]
            return None
        return entry.user

    def keep(self, token: str, key: Key, user: Principal) -> None:
        """Remember the user of a token that this key signed."""
        entry = _Entry(key, user, _ENTRY_BYTES + _size(user.claims))
        if len(token) <= LONGEST_KEPT and entry.size <= self._held.maxsize:
            self._held[_name(token)] = entry


def _size(claims: Mapping[str, object]) -> int:
    """The bytes that claims take. Those of nested lists are many times the bytes of their token."""
    size = 0
    left: list[object] = [claims]
    while left:
        each = left.pop()
        size += sys.getsizeof(each)
        if isinstance(each, Mapping):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list):
            left += each
    return size


def _name(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
