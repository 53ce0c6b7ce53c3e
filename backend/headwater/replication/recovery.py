"""What an attempt to follow the source has to do first, from what the one before failed of; and how long it waits."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from headwater.errors import HeadwaterError, Kind
from headwater.oplog.lsn import ZERO, Lsn
from headwater.replication.errors import PoisonError, SchemaChangedError
from headwater.source.catalog.published import PublicationUnusable
from headwater.source.slot import SlotLostError
from headwater.storage.contract.store import LeaseLostError

_FIRST_DELAY, _LONGEST_DELAY = 0.25, 30.0
_LONGEST_ADAPTING = 1.0  # several changes of tables in a row are no reason to let all others wait
_STEADY = 60.0  # what ran this long in seconds begins with the shortest delay again


@dataclass(slots=True)
class Recovery:
    """Kept over the attempts of one replicator. Up to `careful_until` the stream is taken in transaction by
    transaction; `followed` says that the source was followed once, so that what is wrong now may come right again."""

    must_read: bool = False
    slot_lost: bool = False
    careful_until: Lsn = ZERO
    followed: bool = False
    _delay: float = _FIRST_DELAY

    def note(self, error: HeadwaterError) -> None:
        """Raises the error when another attempt can't help."""
        if isinstance(error, LeaseLostError):
            raise error
        if isinstance(error, PoisonError):
            self.careful_until = error.upto
        elif isinstance(error, SlotLostError):
            self.slot_lost = True
        elif error.kind is Kind.RESYNC:
            self.must_read = True
        elif error.kind is not Kind.RETRY and not self.followed and not isinstance(error, PublicationUnusable):
            raise error

    def pause(self, started: float, stop: threading.Event, error: HeadwaterError) -> None:
        """Wait before the next attempt, longer each time. The last one was `started` on the monotonic clock."""
        longest = _LONGEST_ADAPTING if isinstance(error, SchemaChangedError) else _LONGEST_DELAY
        delay = _FIRST_DELAY if time.monotonic() - started > _STEADY else min(self._delay, longest)
        stop.wait(delay * random.uniform(0.8, 1.2))
        self._delay = min(delay * 2, longest)
