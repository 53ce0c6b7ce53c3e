"""What is recorded of changes while a table is compared."""

from __future__ import annotations

import tracemalloc

from headwater.decode.types import TypeCatalog
from headwater.oplog.change import UNCHANGED, Column, Delete, Insert, Relation, ReplicaIdentity, Update
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.replication.stream.change_log import ChangeLog, Inherited, content_of
from headwater.replication.tables.live import LiveContext, LiveTable
from headwater_rules.compiler.compile import compile_config
from tests.support.sync_configs import NOTES

TEXT = 25


def notes(identity: ReplicaIdentity) -> LiveTable:
    columns = tuple(Column(name, TEXT, -1, name == "id") for name in ("id", "body", "large"))
    relation = Relation(1, "public", "notes", identity, columns)
    plan = compile_config(NOTES).plan
    table = LiveContext("default", (plan,), TypeCatalog(), StoreKeys(b"secret"), 1).table(1, (relation,))
    assert table is not None
    return table


def test_log_keeps_no_values() -> None:
    table = notes(ReplicaIdentity.DEFAULT)
    relation = table.relation
    log = ChangeLog(frozenset({1}), lambda _, rows: list(rows))
    tracemalloc.start()
    try:
        for number in range(1_000):
            cells = (str(number), f"{number}" + "x" * 100_000, UNCHANGED)
            log.record(Lsn(number), table, Update(relation, None, False, cells))
        early, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert early < 2 << 20
    log.begin_at(Lsn(500))
    assert log.of(1).rows == {str(n): Inherited(str(n), frozenset({2})) for n in range(500, 1_000)}


def test_to_count() -> None:
    """A row whose values went along into another one, and contents that came or went, even if they are gone again."""
    log = ChangeLog(frozenset({1}), lambda _, rows: list(rows))
    log.begin_at(Lsn(0))
    keyed = notes(ReplicaIdentity.DEFAULT)
    log.record(Lsn(1), keyed, Update(keyed.relation, ("1", None, None), True, ("2", "b", UNCHANGED)))
    log.record(Lsn(1), keyed, Insert(keyed.relation, ("1", "a", "l")))
    log.record(Lsn(1), keyed, Update(keyed.relation, None, False, ("3", "c", UNCHANGED)))
    assert log.of(1).to_count == {"1"}
    log = ChangeLog(frozenset({1}), lambda _, rows: list(rows))
    log.begin_at(Lsn(0))
    full, row = notes(ReplicaIdentity.FULL), ("1", "a", None)
    log.record(Lsn(1), full, Insert(full.relation, row))
    log.record(Lsn(1), full, Delete(full.relation, row, False))
    assert log.of(1).to_count == {content_of(row)}


def test_rows_without_identity() -> None:
    """Partitions with an identity of their own may tell of updates and deletes, which nobody takes in."""
    log = ChangeLog(frozenset({1}), lambda _, rows: list(rows))
    log.begin_at(Lsn(0))
    table, row, other = notes(ReplicaIdentity.NOTHING), ("1", "a", None), ("1", "b", None)
    log.record(Lsn(1), table, Insert(table.relation, row))
    log.record(Lsn(1), table, Update(table.relation, row, False, other))
    log.record(Lsn(1), table, Delete(table.relation, other, False))
    assert log.of(1).delta == {content_of(row): 1}


def test_incomplete_rows_invalidate() -> None:
    log = ChangeLog(frozenset({1, 2}), lambda _, rows: list(rows))
    log.begin_at(Lsn(100))
    log.invalidate(Lsn(50), 2)
    assert log.invalidated == frozenset(), "the snapshot has what was done then"
    log.mark_incomplete(1)
    log.invalidate(Lsn(50), 1)
    assert log.invalidated == {1}
