"""An embedded store of format 1, as a version that is no more would have left it: it has read the source on paper
(`little_source`), then followed it."""

from __future__ import annotations

import json
from collections import defaultdict
from importlib import resources
from pathlib import Path

import apsw
import zstandard

from headwater.oplog.op import CLEAR_BODY, bucket_key, finished_op
from headwater.oplog.transform import DraftOp, Member, RowKeys, encode_members, row_ops
from headwater.storage.shared.common import encode_layouts
from tests.support.little_source import (
    RELATION,
    SOURCE,
    buckets_of,
    entries,
    puts,
    rows_after,
    sides_of,
    transaction,
)
from tests.support.store_life import LSN_EACH

READ_AT, FOLLOWED_TO = 20, 40
YAML = "d0.1 d1.1 l0"

_ROWS_TABLE = """
create table rows_1 (id integer primary key, row_id text not null, layout integer not null, line text not null,
    members text not null, subkey text) strict;
create unique index rows_1_row_id on rows_1 (row_id);
"""


def make_old_store(directory: Path) -> None:
    """A store that stands at transaction FOLLOWED_TO."""
    directory.mkdir()
    db = apsw.Connection(str(directory / "store.db"))
    db.execute("pragma journal_mode = wal").fetchall()
    with db:
        script = resources.files("headwater.storage.sqlite").joinpath("migrations", "001.sql")
        db.execute(script.read_text(encoding="utf-8"))
        db.execute(_ROWS_TABLE)
        _Writer(db).write()
    db.close()


class _Writer:
    """Fills the tables."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._next = 1000
        self._members: dict[str, list[Member]] = {}
        self._ops: dict[int, list[tuple[int, int]]] = defaultdict(list)  # id and checksum, by bucket

    def write(self) -> None:
        db = self._db
        db.executemany("insert into meta values (?, ?)", [("format", 1), ("salt", b"salt of 16 bytes")])
        db.execute("insert into configs values (1, ?, 1, 1.0)", (YAML,))
        db.execute("insert into sources values (?, ?, 'slot', '1', 1)", (SOURCE, FOLLOWED_TO * LSN_EACH))
        db.execute(
            "insert into tables (id, source, layouts, fingerprint, state) values (1, ?, ?, 'print', 'active')",
            (SOURCE, encode_layouts([RELATION])),
        )
        db.execute("insert into bulk_jobs values (1, 'snapshot', ?, 'app', 1, 1, 1, 1.0, 2.0)", (SOURCE,))
        buckets = [name for definition in ("d0.1", "d1.1") for name in buckets_of(definition)]
        for name in buckets:
            self._hot(DraftOp(bucket_key(name), 0, CLEAR_BODY))
        self._snapshot()
        self._flush_record(READ_AT)
        for number in range(READ_AT + 1, FOLLOWED_TO + 1):
            for row_id, text in (transaction(number) or {}).items():
                for op in self._change(row_id, text):
                    self._hot(op)
            self._flush_record(number)
        for name in buckets:
            ops = self._ops[bucket_key(name)]
            total = sum(checksum for _, checksum in ops) % 2**32
            row = (bucket_key(name), name, name.partition("[")[0], total, len(ops), ops[0][0], ops[-1][0])
            db.execute("insert into buckets values (?, ?, ?, ?, ?, ?, ?)", row)
        db.execute("insert into state values (1, ?, ?, 1)", (self._next, self._next - 1))

    def _snapshot(self) -> None:
        bodies: dict[int, list[DraftOp]] = defaultdict(list)
        for row_id, text in rows_after(READ_AT).items():
            for op in self._change(row_id, text):
                bodies[op.bucket].append(op)
        for blob, (bucket, ops) in enumerate(bodies.items(), 1):
            first = self._next
            text = "\n".join(op.body for op in ops)
            total = sum(op.checksum for op in ops) % 2**32
            blobs = (blob, bucket, len(ops), total, zstandard.compress(text.encode()))
            self._db.execute("insert into segment_blobs values (?, ?, ?, ?, ?)", blobs)
            self._next += len(ops)
            self._db.execute("insert into segments values (?, ?, ?, ?)", (bucket, first, self._next - 1, blob))
            self._ops[bucket] += [(op_id, op.checksum) for op_id, op in enumerate(ops, first)]

    def _hot(self, op: DraftOp) -> None:
        line = finished_op(self._next, op.body)
        self._db.execute("insert into ops values (?, ?, ?)", (self._next, op.bucket, line))
        self._ops[op.bucket].append((self._next, op.checksum))
        self._next += 1

    def _change(self, row_id: str, text: str | None) -> list[DraftOp]:
        sides = list(sides_of(YAML))
        given = [] if text is None else puts(sides, row_id, text)
        ops, members = row_ops(self._members.get(row_id, []), given, RowKeys(1, row_id, b"salt of 16 bytes"))
        self._members[row_id] = members
        self._db.execute("delete from rows_1 where row_id = ?", (row_id,))
        self._db.execute("delete from lookups where row_id = ?", (row_id,))
        if text is not None:
            row = (row_id, f"{row_id}\t{text}", encode_members(members, row_id))
            self._db.execute("insert into rows_1 (row_id, layout, line, members) values (?, 0, ?, ?)", row)
            found = [(entry.key, row_id, entry.output) for entry in entries(sides, row_id, text)]
            self._db.executemany("insert or ignore into lookups values (?, 1, ?, ?)", found)
        return ops

    def _flush_record(self, number: int) -> None:
        record = (self._next - 1, SOURCE, number * LSN_EACH, json.dumps([]))
        self._db.execute("insert or replace into flushes values (?, ?, ?, 1, null, ?)", record)
