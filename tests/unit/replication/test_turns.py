"""The events that end what is done under a lease."""

from __future__ import annotations

import threading
from contextlib import closing

from headwater.replication.replicator import _Turns

WAIT = 30.0


def test_stop_ends_the_present_turn_of_every_source() -> None:
    stop = threading.Event()
    with closing(_Turns(stop)) as one, closing(_Turns(stop)) as other:
        over = one.begin()
        present = [one.begin(), other.begin()]
        stop.set()
        assert all(event.wait(WAIT) for event in present)
        assert not over.is_set()
        assert one.begin().is_set(), "a turn that begins after the stop"


def test_closed_turn_is_not_ended() -> None:
    stop = threading.Event()
    with closing(_Turns(stop)) as one:
        closed = one.begin()
    with closing(_Turns(stop)) as other:
        present = other.begin()
        stop.set()
        assert present.wait(WAIT)
    assert not closed.is_set()


def test_sources_wait_in_one_thread() -> None:
    stop, before = threading.Event(), waiting()
    for _ in range(20):  # as a source that fails again and again
        with closing(_Turns(stop)) as turns:
            turns.begin()
    assert len(waiting() - before) == 1
    stop.set()


def waiting() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "stop"}
