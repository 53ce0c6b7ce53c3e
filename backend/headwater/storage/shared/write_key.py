"""The keys of write checkpoints: a user, or a user and a client, as `user/client`."""

from __future__ import annotations


def user_in_key(user_id: str) -> str:
    """A user's id as a key begins with it, percent-encoded so that it contains no `/`, which ends it. An id without `/`
    and `%` stays as it is."""
    return user_id.replace("%", "%25").replace("/", "%2F")


def user_of(key: str) -> str:
    """What a key begins with."""
    return key.partition("/")[0]


def stand_in_key(user: str) -> str:
    """The key of what stands for the forgotten clients of a user. No other key ends its user with `%`."""
    return f"{user}%"
