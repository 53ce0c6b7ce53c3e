"""A source that fails in a way that a person has to mend is tried again for as long as the process runs."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from headwater.pipeline.jobs import BulkJobs
from headwater.replication.replicator import Replicator
from headwater.source.connect import SourceSettings
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.store import StoreError
from headwater.storage.open import open_store
from tests.support.local_bulk import LocalEngine
from tests.support.waiting import wait_until


def test_attempts_leave_no_threads(tmp_path: Path) -> None:
    store = open_store(SqliteAddress(str(tmp_path))).open_writer()
    with closing(apsw.Connection(str(tmp_path / "store.db"))) as damaged:
        damaged.execute("drop table leases")
    replicator = Replicator(
        source=SourceSettings("localhost", "shop", "headwater"),
        store=store,
        file=None,
        peers={"default": "default"},
        bulk=BulkJobs(LocalEngine()),
        owner="here:1",
        progress=lambda _: None,
        following=lambda: None,
    )
    before, stop = threading.active_count(), threading.Event()
    for _ in range(10):
        with pytest.raises(StoreError):
            replicator.run(stop)
    shared = 1  # waits for `stop`
    wait_until(lambda: threading.active_count() <= before + shared, "the threads of former attempts to end", seconds=10)
    stop.set()
    store.close()
