"""A table of notes, one transaction a row, and the question whether a store holds each of them once."""

from __future__ import annotations

import threading
from collections import Counter

import psycopg

from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.store_checker import histories, problems

OWNERS = ("a", "b", "c")


def snapshot_of_empty_table(deployment: Deployment) -> Deployment:
    deployment.source.execute("create table notes (id text primary key, owner text not null, n int)")
    deployment.start().stop()
    return deployment


def write(source: SourceDb, numbers: range) -> None:
    """One transaction a row."""
    for n in numbers:
        source.execute("insert into notes values (%s, %s, %s)", f"n{n}", OWNERS[n % len(OWNERS)], n)


def assert_each_once(deployment: Deployment, rows: int, removed: int = 0) -> None:
    """Devices see SQL truth, and history holds one PUT for each of `rows` transactions, one REMOVE for each of
    `removed` rows, and nothing else."""
    for owner in OWNERS:
        truth = deployment.source.fetch("select id, owner, n from notes where owner = %s", owner)
        assert deployment.rows(owner) == {("notes", r[0]): {"id": r[0], "owner": r[1], "n": r[2]} for r in truth}
    ops = histories(deployment.address)
    assert [bucket_ops[0]["op"] for bucket_ops in ops.values()] == ["CLEAR"] * len(ops)
    puts = Counter(op["object_id"] for bucket_ops in ops.values() for op in bucket_ops[1:] if op["op"] == "PUT")
    assert puts == {f"n{n}": 1 for n in range(rows)}
    assert sum(map(len, ops.values())) == rows + removed + len(ops)
    assert problems(deployment.address) == []


class Writer(threading.Thread):
    """Commits rows one by one, as many as it was allowed to so far."""

    def __init__(self, source: SourceDb) -> None:
        super().__init__(daemon=True)
        self._dsn = source.dsn
        self._allowed = threading.Semaphore(0)
        self._ended = False
        self.written = 0

    def allow(self, rows: int) -> None:
        self._allowed.release(rows)

    def end(self) -> None:
        self._ended = True
        self._allowed.release()
        self.join(60)

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while self._allowed.acquire() and not self._ended:
                n = self.written
                conn.execute("insert into notes values (%s, %s, %s)", [f"n{n}", OWNERS[n % len(OWNERS)], n])
                self.written = n + 1
