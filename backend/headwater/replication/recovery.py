"""Reconnecting to the source: what the next attempt has to do after the error of the last one, and the back-off."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from headwater.codes import Kind
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import ZERO, Lsn
from headwater.replication.errors import PoisonError, SchemaChangedError
from headwater.source.catalog.publications import PublicationError
from headwater.source.slot import SlotLostError
from headwater.source.stream import UNDECODABLE_TIMES, SilentError, UndecodableError
from headwater.storage.contract.store import BucketKeyTakenError, LeaseLostError

_FIRST_DELAY, _LONGEST_DELAY = 0.25, 30.0
_LONGEST_ADAPTING = 1.0  # after commits were stored, or tables changed, even several in a row: the others do not wait
_ADAPTING = (SchemaChangedError, BucketKeyTakenError)  # the next attempt knows what the last one has found
_LONGEST_PATIENCE = 64.0
_STEADY = 60.0  # after an attempt of that many seconds, delays begin with the shortest again


@dataclass(slots=True)
class Recovery:
    """Kept from one attempt of a replicator to the next. `must_read`: a snapshot is needed. `isolate_until`: up to
    there, transactions are applied one by one. `followed`: the source was followed once, so any error may pass.
    `patience`: how many times as long as usual the source may be silent."""

    must_read: bool = False
    slot_lost: bool = False
    isolate_until: Lsn = ZERO
    followed: bool = False
    patience: float = 1.0
    _undecodable: int = 0
    _delay: float = _FIRST_DELAY
    _progress: bool = False

    def progressed(self) -> None:
        """The attempt stored something of the stream."""
        self._progress, self.patience, self._undecodable = True, 1.0, 0

    def note(self, error: HeadwaterError) -> None:
        """Take an error into account. Raises it when another attempt can't help."""
        if isinstance(error, LeaseLostError):
            raise error
        if isinstance(error, PoisonError):
            self.isolate_until = error.upto
        elif isinstance(error, SlotLostError):
            self.slot_lost = True
        elif isinstance(error, UndecodableError):
            self._undecodable += 1
            if self._undecodable >= UNDECODABLE_TIMES:  # what the log says from here on is lost, too
                self.slot_lost, self._undecodable = True, 0
        elif isinstance(error, SilentError) and not self._progress:  # each attempt has it decode all from the start
            self.patience = min(self.patience * 2, _LONGEST_PATIENCE)
        elif error.kind is Kind.RESYNC:
            self.must_read = True
        elif error.kind is not Kind.RETRY and not self.followed and not isinstance(error, PublicationError):
            raise error

    def pause(self, started: float, stop: threading.Event, error: HeadwaterError) -> None:
        """Wait before the next attempt, longer each time, or until `stop` is set. The last attempt was `started` on the
        monotonic clock. One that stored something makes up for all failures before it."""
        adapting, self._progress = self._progress or isinstance(error, _ADAPTING), False
        longest = _LONGEST_ADAPTING if adapting else _LONGEST_DELAY
        delay = _FIRST_DELAY if time.monotonic() - started > _STEADY else min(self._delay, longest)
        stop.wait(delay * random.uniform(0.8, 1.2))
        self._delay = min(delay * 2, longest)
