"""How users stand in the keys of write checkpoints."""

from __future__ import annotations


def user_in_key(user_id: str) -> str:
    """A user's id as a key begins with it. It has no `/`, which is what ends it there; an id that has neither `/` nor
    `%` stays as it is."""
    return user_id.replace("%", "%25").replace("/", "%2F")
