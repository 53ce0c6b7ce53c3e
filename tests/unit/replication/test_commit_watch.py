"""The commits of the stream that refresh computed tables."""

from __future__ import annotations

from headwater.oplog.change import Begin, Column, Commit, Insert, Message, Relation, ReplicaIdentity
from headwater.oplog.lsn import Lsn
from headwater.replication.stream.commit_watch import CommitWatch

ORDERS = Relation(1, "public", "orders", ReplicaIdentity.DEFAULT, (Column("id", 23, -1, True),))


def commits(first: int, end: int) -> list[Message]:
    return [
        message
        for xid in range(first, end)
        for message in (Begin(Lsn(xid), 0, xid), Insert(ORDERS, ("1",)), Commit(Lsn(xid), Lsn(xid), 0))
    ]


def test_memory_is_bounded_while_a_table_waits() -> None:
    watch = CommitWatch()
    watch.watch({"sums": [("public", "orders")]})
    watch.see(commits(1, 30_000))
    found = watch.take()["sums"]
    assert 1_000 <= len(found) <= 20_000
    assert found[-1] == 29_999
