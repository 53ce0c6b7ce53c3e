"""How the sources of a process are looked at."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from headwater.replication import monitor
from headwater.replication.meters import Totals
from headwater.replication.monitor import SourceMonitor
from headwater.source.connect import SourceSettings
from headwater.storage.address import SqliteAddress
from headwater.storage.open import open_store


def test_few_sources_are_looked_at_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred at once would slow their server down until none of them answers in time."""
    inside, most, done = set[object](), set[int](), set[object]()
    lock, all_looked_at = threading.Lock(), threading.Event()

    def look(check: object, _: object) -> None:
        with lock:
            inside.add(check)
            most.add(len(inside))
        all_looked_at.wait(0.02)  # so that others could come, too
        with lock:
            inside.remove(check)
            done.add(check)
            if len(done) == len(watches):
                all_looked_at.set()

    monkeypatch.setattr(monitor._SourceCheck, "_look", look)
    monkeypatch.setattr(monitor._SourceCheck, "_ask", lambda _: None)
    store = open_store(SqliteAddress(str(tmp_path))).open_writer()
    lease = store.acquire("s0", "here:1", 60.0)
    sources = [SourceSettings("localhost", "app", "app", tag=f"s{n}") for n in range(12)]
    watches = [SourceMonitor(each, store, lease, 60.0, str, Totals) for each in sources]
    for watch in watches:
        watch.__enter__()
    assert all_looked_at.wait(30)
    for watch in watches:
        watch.__exit__(None, None, None)
    store.close()
    assert max(most) == monitor.LOOKED_AT_AT_ONCE


class Asked(threading.BoundedSemaphore):
    """Tells when it is asked for."""

    def __init__(self) -> None:
        super().__init__(1)
        self.asked = threading.Event()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        self.asked.set()
        return super().acquire(blocking, timeout)

    __enter__ = acquire


def test_a_source_that_waits_to_be_looked_at_can_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that are looked at may not answer."""
    looked, looking = [], Asked()
    monkeypatch.setattr(monitor, "_looking", looking)
    monkeypatch.setattr(monitor._SourceCheck, "_look", lambda *_: looked.append(1))
    with closing(open_store(SqliteAddress(str(tmp_path))).open_writer()) as store, looking:
        looking.asked.clear()
        lease = store.acquire("s", "here:1", 60.0)
        source = SourceSettings("localhost", "app", "app", tag="s")
        with SourceMonitor(source, store, lease, 60.0, str, Totals) as watch:
            assert looking.asked.wait(30)
        assert not [thread for thread in watch._threads if thread.is_alive()]
    assert not looked
