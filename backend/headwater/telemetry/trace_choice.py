"""Chooses the changes that are traced, and their ids. Each process does so on its own, and all choose the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from headwater.storage.contract.reader import FlushMark


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """`endpoint` is the base URL of a collector that takes OTLP over HTTP; None for the one that OpenTelemetry's
    environment variables name. At most `per_minute` changes are traced."""

    endpoint: str | None = None
    per_minute: Annotated[int, Meta(ge=1, le=60_000)] = 60


@dataclass(frozen=True, slots=True)
class Flushed:
    """A flush of the stream that was stored: its mark, when it began and when it was stored (in seconds since 1970),
    and how many transactions and row changes it had."""

    mark: FlushMark
    began: float
    stored: float
    transactions: int
    rows: int


class Choice:
    """Chooses the first flush of each source in each period of time, by commit time. Call it with all flushes in order.
    A process that starts in the middle of a period may choose another flush than the others."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._periods: dict[str, int] = {}

    def takes(self, flush: FlushMark) -> bool:
        period = flush.committed_us * self._per_minute // 60_000_000
        before = self._periods.get(flush.source)
        self._periods[flush.source] = period
        return period != before

    def first(self, flushes: Sequence[FlushMark]) -> FlushMark | None:
        """The first of these flushes that is traced, or None."""
        return next(iter([flush for flush in flushes if self.takes(flush)]), None)


def ids_of(flush: FlushMark) -> tuple[int, int]:
    """The ids of a flush's trace and of its root span. They hash source and op id. Stores have different op ids, since
    these begin with the time."""
    digest = hashlib.blake2b(f"{flush.source}\0{flush.last_op}".encode(), digest_size=24).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:])
