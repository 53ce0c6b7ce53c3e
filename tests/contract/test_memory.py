"""What a store holds in memory follows the bytes of rows, not their number."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from headwater.oplog.op import OpId
from headwater.storage.contract.parts import BulkRecord, CurrentRow
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.versions import Origin
from headwater.storage.open import open_store
from tests.contract.source_writer import RELATION, SIDES, SOURCE, YAML, A, SourceWriter, totals
from tests.support.memory import forget_peak, peak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process as Linux tells it")

MB = 1 << 20
ROWS, WIDTH = 12, 4 * MB
CLIENTS = 20
LONG_IDS = 100_000


@pytest.fixture
def large(writer: SourceWriter) -> SourceWriter:
    """A store with many bytes in few rows, all of them in one bucket."""
    writer.bootstrap({"first": (A, "a segment")})
    for number in range(0, ROWS, 4):
        writer.write({str(number + i): (A, "x" * WIDTH) for i in range(4)})
    return writer


def test_memory_of_chunks(large: SourceWriter, reader: StoreReader) -> None:
    upto = OpId(totals(reader, A)[0])
    together = Barrier(CLIENTS)

    def read(_: int) -> list[tuple[int, bool]]:
        together.wait(30)
        at, found = OpId(0), list[tuple[int, bool]]()
        while len(found) < 3:
            chunk = reader.chunk(A, at, upto)
            at = chunk.next_after
            found.append((at, chunk.more and len(chunk.ops) < 2 * WIDTH))
        return found

    with ThreadPoolExecutor(CLIENTS) as threads:
        before = forget_peak()
        found = list(threads.map(read, range(CLIENTS)))
        grown = peak() - before
    assert all(each == found[0] and all(right for _, right in each) for each in found)
    assert grown < CLIENTS * 8 * WIDTH, f"{grown // MB} MB"


def test_memory_of_rows(large: SourceWriter) -> None:
    flush = large.store.begin(large.lease)
    try:
        ids = ["nobody", *map(str, range(ROWS))]
        before = forget_peak()
        rows, looked_at = flush.load(large.table, ids, 3 * WIDTH)
        assert peak() - before < 8 * WIDTH
        assert list(rows) == ids[1:looked_at]
        assert 2 <= len(rows) <= 4
        assert flush.load(large.table, ids[looked_at:], 1)[1] == 1
        assert flush.load(large.table, ["nobody"], 1) == ({}, 1)
    finally:
        flush.rollback()


def test_memory_of_publishing(writer: SourceWriter) -> None:
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "print")])
    with open_store(writer.address).open_part(staged.id, 0, "0") as part:
        for number in range(0, LONG_IDS, 5_000):
            ids = [f"{at * 7919 % LONG_IDS:0400d}" for at in range(number, number + 5_000)]
            part.write([CurrentRow(row_id, 0, "", "", None) for row_id in ids], (), (), {})
        writer.store.stage(writer.lease, [part.finish()])
    before = forget_peak()
    version = writer.store.deploy(YAML, Origin.FILE).id
    record = BulkRecord("snapshot", SOURCE, "app", 1, LONG_IDS, 0, 0.0, 1.0)
    writer.store.publish(writer.lease, writer.state(), [staged], version, SIDES, record)
    assert peak() - before < 400 * LONG_IDS // 2
