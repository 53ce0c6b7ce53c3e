"""What a device says of its connection."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from headwater_client.storage.store import BucketProgress, Synced
from headwater_client.storage.streams import StoredStream


@dataclass(frozen=True)
class Progress:
    """How many operations of the checkpoint on its way have come."""

    downloaded: int
    total: int

    @property
    def fraction(self) -> float:
        return self.downloaded / self.total if self.total else 1.0


@dataclass(frozen=True)
class SyncStatus:
    """The state of a device at a moment. Times are in seconds since 1970; errors stay until the next success."""

    connected: bool = False
    connecting: bool = False
    uploading: bool = False
    buckets: dict[str, BucketProgress] | None = None
    synced: tuple[Synced, ...] = ()
    streams: tuple[StoredStream, ...] = ()
    download_error: Exception | None = None
    upload_error: Exception | None = None

    @property
    def downloading(self) -> bool:
        return self.buckets is not None

    @property
    def has_synced(self) -> bool:
        """Whether one whole checkpoint has ever shown in this file."""
        return self.last_synced_at is not None

    @property
    def last_synced_at(self) -> float | None:
        """When a whole checkpoint last showed."""
        return next((each.last_synced_at for each in self.synced if each.priority is None), None)

    def has_synced_priority(self, priority: int) -> bool:
        """Whether the buckets of this priority have ever shown completely."""
        return any(each.priority is None or each.priority >= priority for each in self.synced)

    def progress(self, priority: int | None = None) -> Progress | None:
        """How far the download is, of all buckets or those up to a priority; None while nothing is on its way."""
        if self.buckets is None:
            return None
        buckets = [each for each in self.buckets.values() if priority is None or each.priority <= priority]
        total = sum(max(0, each.target - each.at_last) for each in buckets)
        return Progress(min(total, sum(each.since_last for each in buckets)), total)


_log = logging.getLogger("headwater_client")


def _tell(listener: Callable[[SyncStatus], object], status: SyncStatus) -> None:
    try:
        listener(status)
    except Exception:  # noqa: BLE001 - an app that cannot show a status is no reason to stop syncing
        _log.exception("a status listener failed")


class StatusBoard:
    """The newest status, and who wants to know of the next. May be used from any thread."""

    def __init__(self, status: SyncStatus) -> None:
        self._status = status
        self._changed = threading.Condition()
        self._listeners: list[Callable[[SyncStatus], object]] = []

    @property
    def status(self) -> SyncStatus:
        return self._status

    def update(self, **fields: Any) -> None:
        """Change some fields, and tell everybody if that makes a difference."""
        with self._changed:
            status = replace(self._status, **fields)
            if status == self._status:
                return
            self._status = status
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            _tell(listener, status)

    def wake(self) -> None:
        """Have everybody look again who waits."""
        with self._changed:
            self._changed.notify_all()

    def listen(self, listener: Callable[[SyncStatus], object]) -> Callable[[], None]:
        """Call `listener` with each new status, in the thread that has it; the answer ends that."""
        with self._changed:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def wait(self, condition: Callable[[SyncStatus], bool], timeout: float | None) -> bool:
        """Wait until the status is so; whether it was in time."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self._status), timeout)
