"""How long a replicator waits before it tries again, and what another attempt can't mend."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn
from headwater.replication.errors import PoisonError, SchemaChangedError, SourceReplacedError
from headwater.replication.recovery import Recovery
from headwater.source.catalog.publications import PublicationError
from headwater.source.connect import SourceUnreachableError
from headwater.source.slot import SlotError, SlotLostError
from headwater.source.stream import SilentError
from headwater.storage.contract.store import LeaseLostError

AWAY = SourceUnreachableError("the source does not answer", "db:5432")
SILENT = SilentError("the source did not answer for 60 s")
CHANGED = SchemaChangedError("another shape", "public.notes")


@dataclass
class Pauses(threading.Event):
    """Somebody who could end the waiting, and who remembers for how long instead."""

    waited: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waited.append(timeout)
        return False


def pauses(recovery: Recovery, *errors: HeadwaterError, lasted: float = 0.0) -> list[float]:
    """How long it waits after each of these, met by attempts that `lasted` so many seconds."""
    stop = Pauses()
    for error in errors:
        recovery.pause(time.monotonic() - lasted, stop, error)
    return stop.waited


def about(waited: list[float], expected: list[float]) -> bool:
    """Each as expected, give or take a fifth."""
    pairs = zip(waited, expected, strict=True)
    return all(0.8 * want <= got <= 1.2 * want for got, want in pairs)


def test_each_wait_is_twice_the_one_before_up_to_half_a_minute() -> None:
    assert about(pauses(Recovery(), *[AWAY] * 10), [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30])


def test_waits_are_spread_so_that_many_do_not_come_at_once() -> None:
    recovery = Recovery()
    pauses(recovery, *[AWAY] * 8)
    waited = pauses(recovery, *[AWAY] * 200)
    assert about(waited, [30.0] * 200)
    assert min(waited) < 0.9 * 30 < 1.1 * 30 < max(waited)


def test_after_a_minute_of_success_the_first_wait_is_short_again() -> None:
    recovery = Recovery()
    pauses(recovery, *[AWAY] * 8)
    assert about(pauses(recovery, AWAY, lasted=59), [30])
    assert about(pauses(recovery, AWAY, lasted=61), [0.25])
    assert about(pauses(recovery, AWAY, AWAY), [0.5, 1])


def test_once_an_attempt_has_stored_something_the_failures_before_it_are_forgotten() -> None:
    recovery = Recovery()
    pauses(recovery, *[AWAY] * 8)
    recovery.progressed()
    assert about(pauses(recovery, *[AWAY] * 4), [1, 1, 2, 4])


def test_attempts_that_store_something_and_fail_again_and_again_are_not_made_without_a_rest() -> None:
    recovery, waited = Recovery(), []
    for _ in range(5):
        recovery.progressed()
        waited += pauses(recovery, AWAY)
    assert about(waited, [0.25, 0.5, 1, 1, 1])


def test_a_source_that_stays_silent_gets_more_time_with_each_attempt_until_one_stores_something() -> None:
    recovery, seen = Recovery(), []
    for _ in range(8):
        recovery.note(SILENT)
        seen.append(recovery.patience)
    assert seen == [2, 4, 8, 16, 32, 64, 64, 64]
    recovery.progressed()
    recovery.note(SILENT)
    assert recovery.patience == 1, "it was silent after it had brought something"


def test_tables_that_change_in_a_row_hold_nobody_up_for_long() -> None:
    recovery = Recovery()
    assert about(pauses(recovery, *[CHANGED] * 6), [0.25, 0.5, 1, 1, 1, 1])
    pauses(recovery, *[AWAY] * 8)
    assert about(pauses(recovery, CHANGED, CHANGED), [1, 1]), "also after a source that was away for long"


def test_a_wait_ends_when_somebody_says_stop() -> None:
    stop = threading.Event()
    stop.set()
    recovery = Recovery()
    for _ in range(20):
        recovery.pause(time.monotonic(), stop, AWAY)  # minutes, were they waited for


@pytest.mark.parametrize(
    ("error", "done"),
    [
        (AWAY, lambda recovery: recovery == Recovery()),
        (CHANGED, lambda recovery: recovery == Recovery()),
        (SlotLostError("gone"), lambda recovery: recovery.slot_lost and not recovery.must_read),
        (SourceReplacedError("another cluster"), lambda recovery: recovery.must_read),
        (PoisonError("why", "default", None, Lsn(9)), lambda recovery: recovery.isolate_until == Lsn(9)),
        (PublicationError("dropped"), lambda recovery: recovery == Recovery()),
    ],
)
def test_an_error_says_what_the_next_attempt_begins_with(
    error: HeadwaterError, done: Callable[[Recovery], bool]
) -> None:
    recovery = Recovery()
    recovery.note(error)
    assert done(recovery)


def test_what_a_person_has_to_mend_ends_a_first_attempt_and_is_waited_for_later() -> None:
    refused = SlotError("wal_level is not logical")
    with pytest.raises(SlotError):
        Recovery().note(refused)
    Recovery(followed=True).note(refused)
    with pytest.raises(LeaseLostError):
        Recovery(followed=True).note(LeaseLostError("another replicator has it"))
