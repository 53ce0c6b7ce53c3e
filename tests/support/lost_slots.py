"""How a replication slot is lost: its server needs `max_slot_wal_keep_size = '64MB'`, and no other slot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headwater.source.stream import Received, ReplicationStream
from tests.support.fix_postgres import SourceDb
from tests.support.waiting import DEADLINE, wait_until


def outrun(source: SourceDb) -> None:
    """Have more log written than the slot may hold, whose reader Postgres ends if there is one."""
    for _ in range(8):
        source.execute("select pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
    source.execute("checkpoint")
    assert source.fetch("select wal_status, active from pg_replication_slots") == [("lost", False)]


@contextmanager
def unread() -> Iterator[None]:
    """The stream is open, and the replicator does not come to read from it."""
    receive = ReplicationStream.receive
    waits, over = threading.Event(), threading.Event()

    def late(stream: ReplicationStream, wait: float, *, more_expected: bool) -> Received:
        waits.set()
        assert over.wait(DEADLINE)
        return receive(stream, wait, more_expected=more_expected)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicationStream, "receive", late)
        try:
            wait_until(waits.is_set, "the replicator to come")
            yield
        finally:
            over.set()
