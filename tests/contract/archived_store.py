"""A store with something of everything, and all that a store shows, to compare it before and after a move."""

from __future__ import annotations

import json
from contextlib import closing

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.contract.reader import Chunk
from headwater.storage.contract.store import RevokedKind
from headwater.storage.open import open_store
from tests.support.written_store import SOURCE, WrittenStore, compact

A, B, C, GONE = 'todos["a"]', 'todos["b"]', 'notes["c"]', 'old["g"]'
BUCKETS = [A, B, C, GONE]


def fill(store: WrittenStore) -> None:
    """Bulk work, live changes, compaction, a bucket without rows, and a client that waits for its write."""
    store.publish({str(i): (GONE if i == 7 else A if i % 3 else B, f"text {i}\t\\ ü") for i in range(3000)})
    for step in range(5):
        store.write({str(i): (A, f"step {step}") for i in range(step * 10, step * 10 + 20)})
    compact(store.address, A)
    store.write({"1": None, "2": (C, "moved"), "x" * 900: (C, "a long id")})
    with closing(open_store(store.address).open_reader()) as reader:
        reader.create_write_checkpoint(["u/1", "u/2", "u/1"], {SOURCE: Lsn(5)})
        reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(900)})
    store.store.revoke(RevokedKind.USER, "u", 3600.0)
    store.store.note_change("Ada", "edit", "terminate", '{"user":"u"}')
    store.store.put_case("a case", '{"user":"u"}', "Ada")


def everything(address: StoreAddress) -> dict[str, object]:
    """All that a store shows to those who use it."""
    with closing(open_store(address).open_reader()) as reader, closing(open_store(address).open_writer()) as store:
        with reader.snapshot() as snapshot:
            assert snapshot is not None
            checkpoint, config = snapshot.checkpoint, snapshot.config
            totals = snapshot.totals(BUCKETS)
            lookups = snapshot.lookups([f"l[{json.dumps(name)}]" for name in BUCKETS])
        chunks: dict[str, list[Chunk]] = {name: [] for name in BUCKETS}
        for name in BUCKETS:
            after, more = OpId(0), True
            while more:
                chunk = reader.chunk(name, after, checkpoint.op_id)
                chunks[name].append(chunk)
                after, more = chunk.next_after, chunk.more
        tables = store.tables(SOURCE)
        rows = {
            table.id: sorted(
                placed for batch in open_store(address).read_rows(table.id, 0, 1 << 62) for placed in batch
            )
            for table in tables
        }
        return {
            "checkpoint": checkpoint,
            "changes": store.changes(None, 10),
            "cases": store.cases(),
            "config": config,
            "totals": totals,
            "lookups": {key: sorted(outputs) for key, outputs in lookups.items()},
            "chunks": chunks,
            "tables": tables,
            "rows": rows,
            "secret": store.keys().secret,
            "source": store.source_state(SOURCE),
            "versions": store.versions(),
            "definitions": store.complete_definitions("default"),
            "jobs": store.bulk_records(),
            "writes": reader.write_checkpoints(0),
            "revocations": reader.revocations(0),
            "touched": reader.touched(OpId(checkpoint.op_id - 10), checkpoint.op_id),
        }
