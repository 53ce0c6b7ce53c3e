"""When rows have to be evaluated again whose buckets depend on the time: what every store keeps of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headwater.oplog.lsn import Lsn
from headwater.oplog.transform import Buckets
from headwater.storage.archive import export_store, import_store
from headwater.storage.contract.parts import BulkRecord, CurrentRow, StagedPart
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import ReplicationProgress
from headwater.storage.open import open_store
from tests.contract.source_writer import RELATION, SOURCE, A, SourceWriter

LONG = "x" * 5_000


def due(writer: SourceWriter, now: int, most: int = 100) -> list[str]:
    with writer.rolled_back() as flush:
        return flush.due(writer.table, now, most)


def put(writer: SourceWriter, flips: dict[str, int | None]) -> None:
    with writer.flush() as flush:
        flush.put_flips(writer.table, flips)


def part_of(writer: SourceWriter, table: int, flips: dict[str, int], *, rows: bool, paged: bool) -> StagedPart:
    with open_store(writer.address).open_part(table, 0, "attempt") as part:
        standing = [CurrentRow(row_id, 0, row_id if rows else "", "", None) for row_id in flips]
        part.write(standing, (), (), Buckets(), flips)
        if paged:
            part.end_page()
        return part.finish()


@pytest.fixture
def filled(writer: SourceWriter) -> SourceWriter:
    writer.bootstrap({"1": (A, "one"), "2": (A, "two"), "3": (A, "three"), LONG: (A, "long")})
    put(writer, {"1": 30, "2": 10, LONG: 20})
    return writer


def test_rows_are_due_in_the_order_of_their_times(filled: SourceWriter) -> None:
    assert due(filled, 9) == []
    assert due(filled, 20) == ["2", LONG]
    assert due(filled, 99) == ["2", LONG, "1"]
    assert due(filled, 99, 2) == ["2", LONG]
    assert filled.store.next_flip([filled.table]) == 10
    assert filled.store.next_flip([]) is None


def test_a_later_flip_replaces_the_earlier_one(filled: SourceWriter) -> None:
    put(filled, {"2": 50, LONG: None, "3": None})
    assert due(filled, 49) == ["1"]
    assert due(filled, 50) == ["1", "2"]


def test_what_is_rolled_back_is_not_kept(filled: SourceWriter) -> None:
    with filled.rolled_back() as flush:
        flush.put_flips(filled.table, {"2": None, "3": 5})
        flush.set_tick(SOURCE, 9)
        assert flush.due(filled.table, 20, 9) == [LONG, "3"]
    assert due(filled, 20) == ["2", LONG]
    assert filled.store.tick(SOURCE) == 0


def test_a_tick_never_goes_back(filled: SourceWriter) -> None:
    for now in (100, 300, 200):
        with filled.flush() as flush:
            flush.set_tick(SOURCE, now)
    assert filled.store.tick(SOURCE) == 300
    assert filled.store.tick("other") == 0


def test_a_truncated_table_has_none(filled: SourceWriter) -> None:
    filled.truncate()
    assert due(filled, 99) == []
    assert filled.store.next_flip([filled.table]) is None


def test_a_snapshot_brings_its_own(filled: SourceWriter) -> None:
    store, lease = filled.store, filled.lease
    (staged,) = store.stage_tables(lease, SOURCE, [(RELATION, "f")])
    store.stage(lease, [part_of(filled, staged.id, {"a": 7, LONG: 8}, rows=True, paged=False)])
    assert filled.store.next_flip([filled.table]) == 10, "nobody sees what is staged"
    version = store.versions()[-1].id
    record = BulkRecord("snapshot", SOURCE, "", 1, 2, 0, 0.0, 1.0)
    filled.lsn += 10
    store.publish(lease, filled.state(), [staged], version, {}, record)
    filled.table = staged.id
    assert due(filled, 99) == ["a", LONG]


def test_a_page_of_additions_makes_rows_due_earlier_only(filled: SourceWriter) -> None:
    part = part_of(filled, filled.table, {"1": 5, "2": 40, "3": 60, LONG: 1}, rows=False, paged=True)
    filled.store.take_page(filled.lease, part, 0, [LONG])
    assert due(filled, 99) == ["1", "2", LONG, "3"]
    assert due(filled, 9) == ["1"]


def test_rows_that_get_other_ids_keep_theirs(filled: SourceWriter) -> None:
    store, lease = filled.store, filled.lease
    (target,) = store.stage_tables(lease, SOURCE, [(RELATION, "f")], indexed=True)
    assert store.stage_page(lease, part_of(filled, target.id, {"one": 30}, rows=True, paged=True), 0)
    assert store.replace_table(lease, filled.table, target, ResyncReason(Cause.REPLACED))
    filled.table = target.id
    assert due(filled, 99) == ["one"]


def test_they_go_with_an_archive(filled: SourceWriter, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    with filled.flush() as flush:
        flush.set_tick(SOURCE, 77)
    export_store(filled.address, tmp_path / "archive", lambda *_: None)
    for to in ("sqlite", "postgres"):
        address = request.getfixturevalue(f"new_{to}_address")()
        import_store(tmp_path / "archive", address, lambda *_: None)
        with closing(open_store(address).open_writer()) as store:
            assert (store.tick(SOURCE), store.next_flip([filled.table])) == (77, 10)
            flush = store.begin(store.acquire(SOURCE, "test", 60.0))
            assert flush.due(filled.table, 99, 9) == ["2", LONG, "1"]
            flush.commit(SOURCE, ReplicationProgress(Lsn(0)))
