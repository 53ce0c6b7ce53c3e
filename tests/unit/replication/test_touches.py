"""What is recorded of changes while a table is compared."""

from __future__ import annotations

import tracemalloc

from headwater.decode.catalog import TypeCatalog
from headwater.oplog.change import UNCHANGED, Column, Relation, ReplicaIdentity, Update
from headwater.oplog.lsn import Lsn
from headwater.replication.stream.touches import Inherited, TouchLog
from headwater.replication.tables.live import LiveContext
from headwater_rules.compiler.compile import compile_config

YAML = """
config: {edition: 3}
streams:
  notes: {auto_subscribe: true, query: "SELECT * FROM notes"}
"""
TEXT = 25


def test_a_log_keeps_no_values() -> None:
    columns = tuple(Column(name, TEXT, -1, name == "id") for name in ("id", "body", "large"))
    relation = Relation(1, "public", "notes", ReplicaIdentity.DEFAULT, columns)
    plan = compile_config(YAML).plan
    table = LiveContext("default", (plan,), TypeCatalog(), b"salt", 1).table(1, (relation,))
    assert table is not None
    log = TouchLog(frozenset({1}), lambda _, rows: list(rows))
    tracemalloc.start()
    try:
        for number in range(1_000):
            cells = (str(number), f"{number}" + "x" * 100_000, UNCHANGED)
            log.note(Lsn(number), table, Update(relation, None, False, cells))
        early, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert early < 2 << 20
    log.begin_at(Lsn(500))
    assert log.of(1).rows == {str(n): Inherited(str(n), frozenset({2})) for n in range(500, 1_000)}
