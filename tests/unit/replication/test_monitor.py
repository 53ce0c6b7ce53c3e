"""How the sources of a process are looked at."""

from __future__ import annotations

import threading
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
