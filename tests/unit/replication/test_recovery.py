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
from headwater.source.stream import UNDECODABLE_TIMES, SilentError, UndecodableError
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


def test_waits_double() -> None:
    assert about(pauses(Recovery(), *[AWAY] * 10), [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30])


def test_waits_are_spread() -> None:
    recovery = Recovery()
    pauses(recovery, *[AWAY] * 8)
    waited = pauses(recovery, *[AWAY] * 200)
    assert about(waited, [30.0] * 200)
    assert min(waited) < 0.9 * 30 < 1.1 * 30 < max(waited)


def test_reset_after_a_minute() -> None:
    recovery = Recovery()
    pauses(recovery, *[AWAY] * 8)
    assert about(pauses(recovery, AWAY, lasted=59), [30])
    assert about(pauses(recovery, AWAY, lasted=61), [0.25])
    assert about(pauses(recovery, AWAY, AWAY), [0.5, 1])


def test_reset_after_progress() -> None:
    recovery = Recovery()
    pauses(recovery, *[AWAY] * 8)
    recovery.progressed()
    assert about(pauses(recovery, *[AWAY] * 4), [1, 1, 2, 4])


def test_progress_and_failure_in_turn() -> None:
    recovery, waited = Recovery(), []
    for _ in range(5):
        recovery.progressed()
        waited += pauses(recovery, AWAY)
    assert about(waited, [0.25, 0.5, 1, 1, 1])


def test_patience_grows() -> None:
    recovery, seen = Recovery(), []
    for _ in range(8):
        recovery.note(SILENT)
        seen.append(recovery.patience)
    assert seen == [2, 4, 8, 16, 32, 64, 64, 64]
    recovery.progressed()
    recovery.note(SILENT)
    assert recovery.patience == 1, "it was silent after it had brought something"


def test_schema_changes_wait_briefly() -> None:
    recovery = Recovery()
    assert about(pauses(recovery, *[CHANGED] * 6), [0.25, 0.5, 1, 1, 1, 1])
    pauses(recovery, *[AWAY] * 8)
    assert about(pauses(recovery, CHANGED, CHANGED), [1, 1]), "also after a source that was away for long"


def test_stop_ends_a_wait() -> None:
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
def test_note(error: HeadwaterError, done: Callable[[Recovery], bool]) -> None:
    recovery = Recovery()
    recovery.note(error)
    assert done(recovery)


def test_errors_that_a_person_mends() -> None:
    refused = SlotError("wal_level is not logical")
    with pytest.raises(SlotError):
        Recovery().note(refused)
    Recovery(followed=True).note(refused)
    with pytest.raises(LeaseLostError):
        Recovery(followed=True).note(LeaseLostError("another replicator has it"))


def test_log_that_postgres_cannot_decode() -> None:
    """It would fail for ever at the same place, so the slot counts as lost; one failure may pass."""
    recovery, error = Recovery(followed=True), UndecodableError("could not map filenode to relation OID")
    for _ in range(UNDECODABLE_TIMES - 1):
        recovery.note(error)
    assert not recovery.slot_lost
    recovery.progressed()
    for _ in range(UNDECODABLE_TIMES):
        assert not recovery.slot_lost
        recovery.note(error)
    assert recovery.slot_lost
