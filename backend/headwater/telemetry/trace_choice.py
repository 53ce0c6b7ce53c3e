"""Which changes are traced, and under which ids: each process finds out for itself, and all come to the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from headwater.storage.contract.reader import FlushMark


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """`endpoint` is the base URL of a collector that takes OTLP over HTTP; None for the one that the environment names.
    At most `per_minute` changes are traced."""

    endpoint: str | None = None
    per_minute: int = 60


class Choice:
    """Chooses the first flush of each period of time, by when its commit was made. Flushes are to be shown in their
    order. Who begins later may choose one that others did not."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._periods: dict[str, int] = {}

    def takes(self, flush: FlushMark) -> bool:
        """Whether this one is traced."""
        period = flush.committed_us * self._per_minute // 60_000_000
        before = self._periods.get(flush.source)
        self._periods[flush.source] = period
        return period != before

    def first(self, flushes: Sequence[FlushMark]) -> FlushMark | None:
        """The first of these that is traced."""
        taken = [flush for flush in flushes if self.takes(flush)]
        return taken[0] if taken else None


def ids_of(flush: FlushMark) -> tuple[int, int]:
    """The id of a flush's trace and of the span that the others in it are parts of. Op ids of two stores differ, for
    they begin with the time."""
    digest = hashlib.blake2b(f"{flush.source}\0{flush.last_op}".encode(), digest_size=24).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:])
