"""A stream that an app asks for, beside those that everybody has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from headwater_client.storage.streams import StreamKey

DEFAULT_TTL: Final = 24 * 3600
"""Seconds that a stream's rows stay on the device after it was given up."""


@dataclass(frozen=True, eq=False)
class Subscription:
    """A stream that this app holds. A context manager that gives it up."""

    key: StreamKey
    _give_up: Callable[[Subscription], None] = field(repr=False)

    def unsubscribe(self) -> None:
        """Give it up: its rows stay for its ttl. Once is enough."""
        self._give_up(self)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.unsubscribe()
