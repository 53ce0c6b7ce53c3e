"""Rows whose buckets depend on the time, while the stream is followed: with a clock of the test's, on every store."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from headwater.bulk.bound_table import distinct
from headwater.decode.types import Oid, TypeCatalog
from headwater.oplog.change import Column, Insert, Relation, ReplicaIdentity, Update
from headwater.oplog.lsn import Lsn
from headwater.oplog.transform import decode_memberships
from headwater.replication.meters import Figures
from headwater.replication.stream.flush_builder import FlushBuilder
from headwater.replication.tables.live import LiveContext
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.open import open_store
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.clock import DAY
from tests.contract.source_writer import SOURCE, A, SourceWriter

COLUMNS = (Column("id", Oid.INT4, -1, True), Column("at", Oid.TIMESTAMPTZ, -1, False))
RELATION = Relation(77, "public", "notes", ReplicaIdentity.DEFAULT, COLUMNS)
SHAPE = '{"definition": "", "columns": "", "leaves": {"77": ["", 1]}, "pinned": false, "streamed": ""}'
WINDOW = "at > now() - interval '1 day'"


@dataclass(slots=True)
class Following:
    """The stream of a source with one table, as the replicator follows it. `now` is the time in microseconds."""

    writer: SourceWriter
    now: int = 0
    lsn: int = 1_000
    builder: FlushBuilder = field(init=False)

    def begin(self, *wheres: str) -> None:
        """Follow by these conditions, as after a start."""
        plans = [
            compile_config(
                "config: {edition: 3}\nstreams:\n  s:\n    auto_subscribe: true\n"
                f"    query: SELECT id FROM notes WHERE {where}\n"
            ).plan
            for where in wheres
        ]
        store = self.writer.store
        stored = [table for table in store.tables(SOURCE) if table.relation.oid == RELATION.oid]
        context = LiveContext(SOURCE, distinct(plans), TypeCatalog(), store.keys(), 1 << 20)
        source = object()  # which nothing is asked of: no value is missing
        self.builder = FlushBuilder(
            store, self.writer.lease, context, stored, Lsn(self.lsn), source, Figures(), lambda: self.now  # type: ignore[arg-type]
        )  # fmt: skip

    def change(self, *changes: Insert | Update) -> None:
        table = self.builder.tables.tables[RELATION.oid]
        self.builder.pending += [(table, change) for change in changes]
        self.lsn += 10
        self.builder.progress.reached = Lsn(self.lsn)
        self.builder.commit(Lsn(self.lsn))

    def pass_time(self, until: int) -> int:
        """Let time pass. Returns how many ops that gave."""
        before = self._last_op()
        self.now = until
        self.builder.evaluate_due()
        return self._last_op() - before

    def next_flip(self) -> int | None:
        return self.writer.store.next_flip(table.id for table in self.writer.store.tables(SOURCE))

    def _last_op(self) -> int:
        with closing(open_store(self.writer.address).open_reader()) as reader, reader.snapshot() as snapshot:
            assert snapshot is not None
            return snapshot.checkpoint.op_id

    def synced(self) -> list[str]:
        """The ids of rows that are in a bucket."""
        table = self.builder.tables.tables[RELATION.oid]
        with self.writer.rolled_back() as flush:
            rows = flush.current(table.id, [str(number) for number in range(10)]).values()
            return sorted(row.row_id for row in rows if decode_memberships(row.members, row.row_id))


def note(number: int, at: str | None) -> Insert:
    return Insert(RELATION, (str(number), at))


@pytest.fixture
def following(writer: SourceWriter) -> Following:
    writer.bootstrap({"1": (A, "of another table")})
    writer.store.create_tables(writer.lease, SOURCE, [(RELATION, SHAPE)], ResyncReason(Cause.NEW))
    found = Following(writer)
    found.begin(WINDOW)
    return found


def days(*numbers: int) -> Sequence[Insert]:
    """Notes of so many days after 1970-01-01."""
    return [note(number, f"1970-01-{number + 1:02} 00:00:00+00") for number in numbers]


def test_rows_leave_when_their_time_has_come(following: Following) -> None:
    following.change(*days(0, 1, 2), note(9, None))
    assert following.synced() == ["0", "1", "2"]
    assert following.pass_time(DAY - 1) == 0
    assert following.pass_time(2 * DAY) == 2
    assert following.synced() == ["2"]
    assert following.pass_time(9 * DAY) == 1
    assert following.synced() == []
    assert following.next_flip() is None


def test_a_change_sets_another_time(following: Following) -> None:
    following.change(*days(0))
    following.change(Update(RELATION, None, False, ("0", "1970-01-05 00:00:00+00")))
    assert following.pass_time(4 * DAY) == 0
    assert following.synced() == ["0"]


def test_rows_come_when_their_time_begins(following: Following) -> None:
    following.begin("at < now() - interval '1 day'")
    following.change(*days(0, 1))
    assert following.synced() == []
    following.pass_time(DAY + 1)
    assert following.synced() == ["0"]


def test_what_came_due_meanwhile_is_done_after_a_restart(following: Following) -> None:
    following.change(*days(0, 1))
    following.begin(WINDOW)
    assert following.pass_time(9 * DAY) == 2
    assert following.synced() == []


def test_a_clock_that_is_set_back_brings_nothing_back(following: Following) -> None:
    following.change(*days(0))
    following.pass_time(9 * DAY)
    following.now = 0
    following.begin(WINDOW)
    following.change(*days(1))
    assert following.synced() == []


def test_a_time_that_is_far_ahead_is_told(following: Following, caplog: pytest.LogCaptureFixture) -> None:
    following.change(*days(0))
    following.pass_time(9 * DAY)
    following.now = 9 * DAY - 1_000_000  # as of another machine
    following.begin(WINDOW)
    assert "HW_2037" not in caplog.text
    following.now = 2 * DAY
    following.begin("at IS NOT NULL")
    assert "HW_2037" not in caplog.text
    following.begin(WINDOW)
    assert "HW_2037" in caplog.text
    assert "until 1970-01-10 00:00:00 UTC" in caplog.text


def test_rules_without_time_keep_none(following: Following) -> None:
    following.begin("at IS NOT NULL")
    following.change(*days(0))
    assert following.pass_time(9 * DAY) == 0
    assert following.next_flip() is None
    assert following.writer.store.tick(SOURCE) == 0


def test_rules_that_lose_the_clock_leave_rows_alone(following: Following) -> None:
    following.change(*days(0))
    following.begin("at IS NOT NULL")
    assert following.pass_time(9 * DAY) == 0
    assert following.builder.is_empty
    assert following.writer.store.tick(SOURCE) == 0
