"""The keys of write checkpoints."""

from __future__ import annotations


def user_in_key(user_id: str) -> str:
    """A user's id as a key begins with it, percent-encoded so that it contains no `/`, which ends it. An id without `/`
    and `%` stays as it is."""
    return user_id.replace("%", "%25").replace("/", "%2F")
