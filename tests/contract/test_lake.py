"""What a lake has of a store, of whatever kind that is."""

from __future__ import annotations

import json
import tracemalloc
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headwater.decode.copytext import join_cells
from headwater.lake.directory import open_lake
from headwater.lake.export import Exporter
from headwater.lake.manifest import ForeignLakeError, Manifest
from headwater.oplog.lsn import Lsn
from headwater.storage.archive import export_store, import_store
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import ReplicationProgress
from headwater.storage.open import open_store
from tests.support.fix_stores import NewAddress
from tests.support.lakes import assert_is_store, devices_of, export, manifest_of, ops_of, snapshot_of
from tests.support.written_store import SOURCE, A, B, C, WrittenStore, compact, shown


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a lake is to be."""
    return tmp_path / "lake"


def check(root: Path, store: WrittenStore) -> None:
    """Hold the lake to what the store and the source have."""
    assert shown(assert_is_store(root, store.address)) == store.standing()
    rows = {row["row_id"]: json.loads(row["data"]) for row in snapshot_of(root, "rows")}
    assert rows == {row_id: {"id": row_id, "text": text} for row_id, (_, text) in store.rows.items()}


def test_lake_follows_store(lived: WrittenStore, root: Path) -> None:
    done = export(lived.address, root)
    assert (done.ops, done.snapshot, done.complete) == (len(ops_of(root)), True, True)
    check(root, lived)
    files = {path: path.stat().st_mtime_ns for path in (root / "ops").iterdir()}
    assert len(files) > 3
    lived.write({"3": (B, "changed"), "new": (C, "later"), "4": None})
    assert export(lived.address, root).ops == 4  # 3 leaves the one bucket for the other
    check(root, lived)
    assert {path: path.stat().st_mtime_ns for path in files} == files, "files are not written twice"
    assert (export(lived.address, root).ops, len(list((root / "ops").iterdir()))) == (0, len(files) + 1)


def test_change_that_no_device_sees(lived: WrittenStore, root: Path) -> None:
    export(lived.address, root)
    before = manifest_of(root)["checkpoint"]
    flush = lived.store.begin(lived.lease)
    members = flush.current(lived.table, ["5"])["5"].members
    flush.put_rows(lived.table, [CurrentRow("5", 0, join_cells(("5", "un\tseen")), members, None)])
    flush.commit(SOURCE, ReplicationProgress(Lsn(50_000), 7))
    assert export(lived.address, root).ops == 0
    assert manifest_of(root)["checkpoint"] == before
    (row,) = [row for row in snapshot_of(root, "rows") if row["row_id"] == "5"]
    assert json.loads(row["data"]) == {"id": "5", "text": "un\tseen"}
    assert (row["source"], row["schema"], row["table"], row["lsn"]) == (SOURCE, "public", "todos", "0/C350")


@pytest.mark.parametrize("files", [1, 3])
def test_stop_within_round(lived: WrittenStore, root: Path, files: int) -> None:
    export(lived.address, root)
    before = shown(devices_of(root))
    lived.write({str(i): (A, "changed") for i in range(2000)})
    written = list[Manifest]()
    store = open_store(lived.address)
    with open_lake(root, manifest_of(root)["store"]) as lake:
        done = Exporter(store, lake, lambda: len(written) == files, written.append, 300).run_round(0)
    assert (done.snapshot, done.complete) == (False, False)
    found = manifest_of(root)
    assert found["position"] > found["checkpoint"], "it has a part of what is new"
    assert shown(devices_of(root)) == before, "which does not count yet"
    lived.write({str(i): None for i in range(500)} | {"5": (B, "back")})
    compact(lived.address, A)
    export(lived.address, root)
    check(root, lived)


def test_truncated_table(lived: WrittenStore, root: Path) -> None:
    export(lived.address, root)
    lived.truncate()
    lived.write({"5": (B, "after")})
    export(lived.address, root)
    assert Counter(op["op"] for op in ops_of(root)[-4:]) == {"CLEAR": 3, "PUT": 1}
    check(root, lived)


def test_compaction_between_rounds(lived: WrittenStore, root: Path) -> None:
    compact(lived.address, B)
    export(lived.address, root)
    for step in range(3):  # what the lake has not seen is merged, and so is what it has
        lived.write({str(i): (A, f"again {step}") for i in range(2000)})
        lived.write({str(i): None for i in range(step * 100, step * 100 + 100)})
        lived.write({str(i): (B, "moved") for i in range(2500 + step, 2600)})
        compact(lived.address, A, B)
        lived.write({f"new {step}": (A, "after the compaction")})
        export(lived.address, root)
        check(root, lived)


def test_definition_that_ends(lived: WrittenStore, root: Path) -> None:
    lived.publish({"1": (A, "x"), "2": (C, "y")})
    export(lived.address, root)
    assert manifest_of(root)["definitions"] == ["notes", "todos"]
    before = manifest_of(root)["checkpoint"]
    while lived.store.retire(lived.lease, ["notes"], 1000):
        pass
    export(lived.address, root)
    assert manifest_of(root)["definitions"] == ["todos"]
    assert manifest_of(root)["checkpoint"] == before, "it ends without an op"
    assert shown(assert_is_store(root, lived.address)) == Counter([(A, "1", "x")])


def test_columns_of_ops(written: WrittenStore, root: Path) -> None:
    written.publish({"1": (A, "bulk")})
    written.write({"2": (A, "live"), "1": None}, committed_us=86_400_000_000)
    export(written.address, root)
    clear, bulk, *live = ops_of(root)
    assert (clear["op"], clear["bucket"], clear["object_id"], clear["data"]) == ("CLEAR", A, None, None)
    assert (bulk["op"], bulk["object_id"], bulk["commit_lsn"], bulk["committed_at"]) == ("PUT", "1", None, None)
    put, removed = sorted(live, key=lambda op: str(op["op"]))
    assert (put["definition"], put["object_type"], put["object_id"]) == ("todos", "todos", "2")
    assert json.loads(put["data"]) == {"text": "live"}
    assert (removed["op"], removed["object_id"], removed["data"]) == ("REMOVE", "1", None)
    for op in (put, removed):
        assert (op["source"], op["commit_lsn"]) == (SOURCE, "0/6E")
        assert op["committed_at"].astimezone(UTC) == datetime(2000, 1, 1, tzinfo=UTC) + timedelta(days=1)
    assert manifest_of(root)["sources"] == {SOURCE: "0/6E"}


def test_store_without_ops(written: WrittenStore, root: Path) -> None:
    export(written.address, root)
    assert (ops_of(root), snapshot_of(root, "rows"), snapshot_of(root, "buckets")) == ([], [], [])
    written.publish({"1": (A, "x")})
    export(written.address, root)
    check(root, written)


def test_snapshot_that_is_young(lived: WrittenStore, root: Path) -> None:
    assert export(lived.address, root, age=3600).snapshot
    lived.write({"5": None})
    done = export(lived.address, root, age=3600)
    assert (done.ops, done.snapshot) == (1, False)
    old = manifest_of(root)["snapshots"]
    assert export(lived.address, root).snapshot
    lived.write({"6": None})
    export(lived.address, root)
    kept = manifest_of(root)["snapshots"]
    assert len(kept) == 2, "the one before stays for who is reading it"
    assert old[0] not in kept
    assert {path.name for path in (root / "rows").iterdir()} == {Path(each["rows"]).name for each in kept}


def test_other_store(lived: WrittenStore, new_address: NewAddress, root: Path) -> None:
    export(lived.address, root)
    before = manifest_of(root)
    with closing(WrittenStore(new_address())) as other:
        other.publish({"1": (A, "other")})
        with pytest.raises(ForeignLakeError, match=r"ops of another store.*--reset"):
            export(other.address, root)
        assert manifest_of(root) == before
        export(other.address, root, reset=True)
        check(root, other)


def test_store_that_went_back(lived: WrittenStore, new_address: NewAddress, root: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    export_store(lived.address, backup, lambda *_: None)
    lived.write({"5": (B, "lost")})
    export(lived.address, root)
    restored = new_address()
    import_store(backup, restored, lambda *_: None)
    with pytest.raises(ForeignLakeError, match="it went back"):
        export(restored, root)
    with closing(WrittenStore(restored)) as again:
        again.write({"6": (B, "another way")})
    with pytest.raises(ForeignLakeError, match="went back and took another way"):
        export(restored, root)
    export(restored, root, reset=True)
    assert_is_store(root, restored)


def test_moved_store(lived: WrittenStore, new_address: NewAddress, root: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    export(lived.address, root)
    export_store(lived.address, backup, lambda *_: None)
    moved = new_address()
    import_store(backup, moved, lambda *_: None)
    with closing(WrittenStore(moved)) as again:
        again.write({"6": (B, "there")})
    assert export(moved, root).ops == 2
    assert_is_store(root, moved)


def test_memory_for_many_ops(written: WrittenStore, root: Path) -> None:
    text = "x" * 4000
    written.publish({str(i): (A if i % 2 else B, f"{i} {text}") for i in range(50_000)})
    tracemalloc.start()
    try:
        assert export(written.address, root, ops_per_file=100_000).ops == 50_002
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100e6, "of 200 MB of ops, a part is in memory at once"
    assert len(snapshot_of(root, "buckets")) == 50_000
