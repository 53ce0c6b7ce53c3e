"""Several sources of one process write to a store in the order in which they came."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.store import StoreBusyError
from headwater.storage.open import open_store
from headwater.storage.shared.turns import Turns
from headwater.storage.sqlite import connection


def test_a_busy_thread_does_not_take_the_turn_of_one_that_waits() -> None:
    turns, order = Turns(), list[str]()
    assert turns.take(1)

    def other() -> None:
        assert turns.take(10)
        order.append("other")
        turns.give()

    waiting = threading.Thread(target=other)
    waiting.start()
    while not turns.waited_for:
        pass
    turns.give()
    assert turns.take(10)  # again at once, as a busy source does
    order.append("busy")
    turns.give()
    waiting.join()
    assert order == ["other", "busy"]


def test_who_gave_up_waiting_gets_no_turn() -> None:
    turns = Turns()
    assert turns.take(1)
    assert not turns.take(0.01)
    assert not turns.waited_for
    turns.give()
    assert turns.take(0.01)


def test_a_flush_ends_its_turn_however_it_ends(tmp_path: Path) -> None:
    address = SqliteAddress(str(tmp_path))
    writers = [open_store(address).open_writer() for _ in range(2)]
    leases = [writer.acquire(f"source{number}", "here:1", 60.0) for number, writer in enumerate(writers)]
    flush = writers[0].begin(leases[0])
    flush.lock()
    flush.rollback()
    flush.rollback()
    flush = writers[1].begin(leases[1])
    flush.lock()
    began = threading.Event()

    def another() -> None:
        other = writers[0].begin(leases[0])
        other.lock()
        began.set()
        other.rollback()

    waiting = threading.Thread(target=another)
    waiting.start()
    assert not began.is_set()
    flush.rollback()
    assert began.wait(10)
    waiting.join()
    for writer in writers:
        writer.close()


def test_a_turn_that_does_not_come_is_no_fault_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_TURN_SECONDS", 0.05)
    writers = [open_store(SqliteAddress(str(tmp_path))).open_writer() for _ in range(2)]
    leases = [writer.acquire(f"source{number}", "here:1", 60.0) for number, writer in enumerate(writers)]
    flush = writers[0].begin(leases[0])
    flush.lock()
    with pytest.raises(StoreBusyError, match="another thread of this process"):
        writers[1].begin(leases[1]).lock()
    flush.rollback()
    for writer in writers:
        writer.close()


def test_who_was_interrupted_gets_no_turn() -> None:
    turns = Turns()
    assert turns.take(1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            turns.take(10)
    finally:
        signal.signal(signal.SIGALRM, former)
    turns.give()
    assert turns.take(0.01)


def test_a_turn_that_comes_with_an_interrupt_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    assert turns.take(1)

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            turns.give()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Event", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            turns.take(10)
    assert turns.take(0.01)
