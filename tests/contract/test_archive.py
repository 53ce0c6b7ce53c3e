"""What `storage.archive` and `storage.contract.archive` promise: a store goes through a file with every id as it is,
nothing half-done is seen, and one that is sealed can't be written to any more."""

from __future__ import annotations

import hashlib
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import zstandard

from headwater.oplog.lsn import Lsn
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.archive import ArchiveHeader, export_store, import_store
from headwater.storage.contract.archive import DATASETS, ArchivedState, ArchiveError, Row, StoreNotEmptyError
from headwater.storage.contract.store import LeaseHeldError, RevokedKind, SealedStoreError, StoreError
from headwater.storage.open import open_store
from headwater.storage.postgres.archive import PostgresLoad
from headwater.storage.sqlite.archive import SqliteLoad
from tests.contract.archived_store import BUCKETS, A, B, everything, fill
from tests.support.command import headwater
from tests.support.fix_stores import NewAddress
from tests.support.model_device import ModelBucket
from tests.support.store_checker import problems
from tests.support.store_file import store_file, store_tables
from tests.support.written_store import SOURCE, WrittenStore, catch_up, shown

Batches = list[tuple[str, Sequence[Row]]]


def silent(rows: int, expected: int) -> None:
    """Reports nothing."""


def export(address: StoreAddress, file: Path, *, seal: bool = False) -> ArchiveHeader:
    return export_store(address, file, silent, seal=seal)


def assert_no_store_at(address: StoreAddress) -> None:
    assert not open_store(address).exists()
    with pytest.raises(StoreError, match="there is no store"):
        open_store(address).open_history().__enter__()


def dumped(address: StoreAddress) -> tuple[ArchivedState, Batches]:
    with open_store(address).dump() as dump:
        batches = list(dump.batches)
        assert counted(batches) == {dataset: count for dataset, count in dump.counts.items() if count}
        return dump.state, batches


def counted(batches: Batches) -> dict[str, int]:
    return {dataset: len(rows) for dataset, rows in by_dataset(batches).items()}


def by_dataset(batches: Batches) -> dict[str, list[str]]:
    """The rows in an order that does not depend on the back end."""
    found: dict[str, list[str]] = {}
    for dataset, rows in batches:
        found.setdefault(dataset, []).extend(repr(tuple(row)) for row in rows)
    return {dataset: sorted(rows) for dataset, rows in found.items()}


@pytest.fixture
def filled(written: WrittenStore) -> WrittenStore:
    fill(written)
    return written


@pytest.fixture
def archive(filled: WrittenStore, tmp_path: Path) -> Path:
    export(filled.address, tmp_path / "store.archive")
    return tmp_path / "store.archive"


# moving


@pytest.mark.parametrize("to", ["sqlite", "postgres"])
def test_moved_store(filled: WrittenStore, to: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    device = {name: ModelBucket() for name in BUCKETS}
    catch_up(filled.address, device)
    state, batches = dumped(filled.address)
    export(filled.address, tmp_path / "archive")
    before = everything(filled.address)
    address = request.getfixturevalue(f"new_{to}_address")()
    import_store(tmp_path / "archive", address, silent)
    after = everything(address)
    assert {key for key in before if before[key] != after[key]} == set()
    moved_state, moved_batches = dumped(address)
    assert replace(moved_state, next_op=state.next_op) == state
    assert moved_state.next_op >= state.next_op
    assert by_dataset(moved_batches) == by_dataset(batches)
    assert problems(address) == []
    with closing(WrittenStore(address)) as moved:
        moved.rows = dict(filled.rows)
        moved.write({"3": (A, "written after the move"), "4": None})
        assert catch_up(address, device) == 2, "only what is new"
        assert shown(device) == moved.standing()
        moved.truncate()
        assert moved.table > filled.table, "ids are not given out again"
    with closing(open_store(address).open_reader()) as reader:
        assert reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(999)}) == {"u/1": 3}


def test_dump_is_of_one_moment(filled: WrittenStore) -> None:
    _, before = dumped(filled.address)
    with open_store(filled.address).dump() as dump:
        filled.write({"5": (B, "meanwhile"), "6": None})
        filled.truncate()
        assert by_dataset(list(dump.batches)) == by_dataset(before)


def test_export_beside_a_writer(written: WrittenStore, new_sqlite_address: NewAddress, tmp_path: Path) -> None:
    first = written.publish({str(i): (A if i % 2 else B, "x") for i in range(500)})
    truth = {int(first.op_id): written.standing()}
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            changes = {str(i): (A if (i + number) % 2 else B, f"{number}") for i in range(number % 7, 500, 50)}
            checkpoint = written.write(changes)
            truth[checkpoint.op_id] = written.standing()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        moment = export_store(written.address, tmp_path / "archive", lambda *_: time.sleep(0.02)).state.checkpoint
    finally:
        stop.set()
        thread.join()
    assert moment is not None
    assert max(truth) > moment, "nothing was written meanwhile"
    copy = new_sqlite_address()
    import_store(tmp_path / "archive", copy, silent)
    device = {name: ModelBucket() for name in (A, B)}
    catch_up(copy, device)
    assert shown(device) == truth[moment]


def test_batches_are_bounded_by_bytes(written: WrittenStore) -> None:
    written.publish({str(i): (A, "x" * 1_000_000) for i in range(24)})
    _, batches = dumped(written.address)
    sizes = [sum(len(cell) for row in rows for cell in row if isinstance(cell, str)) for _, rows in batches]
    assert sum(sizes) > 2 * max(sizes)


def test_progress_ends_with_all_rows(filled: WrittenStore, new_address: NewAddress, tmp_path: Path) -> None:
    reports: list[tuple[int, int]] = []

    def report(rows: int, expected: int) -> None:
        reports.append((rows, expected))

    export_store(filled.address, tmp_path / "archive", report)
    exported = reports.copy()
    reports.clear()
    import_store(tmp_path / "archive", new_address(), report)
    assert reports == exported
    assert reports[0][0] == 0
    assert reports[-1][0] == reports[-1][1] > 6000


# what is refused


def test_export_without_a_store(new_address: NewAddress, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no store"):
        export(new_address(), tmp_path / "archive")
    assert list(tmp_path.glob("*archive*")) == []


def test_archive_file(filled: WrittenStore, archive: Path, tmp_path: Path) -> None:
    assert archive.stat().st_mode & 0o077 == 0, "it has the store's secret"
    assert list(tmp_path.glob(".*")) == [], "nothing unfinished is left"
    content = archive.read_bytes()
    for file, reason in ((archive, "exists already"), (archive / "below", "can't be written")):
        with pytest.raises(ArchiveError, match=reason):
            export(filled.address, file)
    assert archive.read_bytes() == content


def test_failed_export(filled: WrittenStore, tmp_path: Path) -> None:
    filled.store.release(filled.lease)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ArchiveError, match="No space left on device"):
        export_store(filled.address, tmp_path / "archive", full, seal=True)
    damage = "delete from segment_blobs where id = (select max(id) from segment_blobs)"
    if isinstance(filled.address, PostgresAddress):
        with store_tables(filled.address) as tables:
            tables.execute(damage)
    else:
        with store_file(filled.address.directory) as db:
            db.execute(damage)
    with pytest.raises(ArchiveError, match="not all rows"):
        export(filled.address, tmp_path / "archive", seal=True)
    assert open_store(filled.address).seal_note() is None
    assert list(tmp_path.glob("*archive*")) == []


def test_overlapping_exports(filled: WrittenStore, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    first: list[bytes] = []

    def meanwhile(*_: object) -> None:
        if not first:
            first.append(b"")
            export(filled.address, path)
            first[0] = path.read_bytes()

    with pytest.raises(ArchiveError, match="exists already"):
        export_store(filled.address, path, meanwhile)
    assert path.read_bytes() == first[0]
    assert [file.name for file in tmp_path.iterdir() if "archive" in file.name] == ["archive"]


def test_no_seal_without_a_file(filled: WrittenStore, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled.store.release(filled.lease)
    sealed: list[str] = []
    monkeypatch.setattr(type(open_store(filled.address)), "seal", lambda _, note: sealed.append(note))
    for file in (archive, archive / "below", archive.parent / "missing" / "archive"):
        with pytest.raises(ArchiveError):
            export(filled.address, file, seal=True)
    assert sealed == []


@pytest.mark.parametrize("part", ["compression", "header", "length"])
def test_unreadable_contents(archive: Path, new_address: NewAddress, tmp_path: Path, part: str) -> None:
    line = archive.read_bytes().partition(b"\n")[0] + b"\n"
    packed = {
        "compression": b"no zstd",
        "header": zstandard.compress(struct.pack(">I", 1) + b"\xc0"),
        "length": zstandard.compress(b"\0\0"),
    }[part]
    content = line + packed
    copy = tmp_path / "copy"
    copy.write_bytes(content + struct.pack(">Q32s", len(content), hashlib.sha256(content).digest()))
    address = new_address()
    with pytest.raises(ArchiveError, match="contents are not"):
        import_store(copy, address, silent)
    assert_no_store_at(address)


def flipped(content: bytes, at: int) -> bytes:
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


CUT = "the end of the archive is missing"
OTHER = "no archive of a store"
CHANGED = "damaged or was changed"
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut by a byte": (lambda content: content[:-1], CUT),
    "cut in half": (lambda content: content[: len(content) // 2], CUT),
    "cut after the first line": (lambda content: content[: content.index(b"\n") + 1], CUT),
    "cut in the first line": (lambda content: content[:10], OTHER),
    "empty": (lambda _: b"", OTHER),
    "another file": (lambda _: b"SQLite format 3\0" * 100, OTHER),
    "longer": (lambda content: content + b"more", CUT),
    "changed header": (lambda content: flipped(content, content.index(b"\n") + 20), CHANGED),
    "changed rows": (lambda content: flipped(content, len(content) // 2), CHANGED),
    "changed checksum": (lambda content: flipped(content, -1), CHANGED),
    "a later format": (
        lambda content: b"headwater-archive 99 99.1" + content[content.index(b"\n") :],
        r"has format 99, this version reads formats up to \d+.*use headwater 99.1",
    ),
}


def test_damaged_archive(archive: Path, new_address: NewAddress, tmp_path: Path) -> None:
    address, copy = new_address(), tmp_path / "copy"
    for name, (damage, reason) in DAMAGES.items():
        copy.write_bytes(damage(archive.read_bytes()))
        with pytest.raises(ArchiveError, match=reason) as failure:
            import_store(copy, address, silent)
        assert str(copy) in str(failure.value), name
        assert_no_store_at(address)
    with pytest.raises(ArchiveError, match="make sure that the export is finished"):
        import_store(tmp_path / "missing", address, silent)
    import_store(archive, address, silent)


def test_archive_of_one_source(
    filled: WrittenStore, new_address: NewAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions wrote it that knew no other source."""
    expected, copy = everything(filled.address), tmp_path / "archive"
    with monkeypatch.context() as before:
        before.setitem(DATASETS, "definitions", {"name": str, "digest": str, "state": str})
        before.setitem(DATASETS, "versions", without(DATASETS["versions"], "author", "message"))
        before.setattr("headwater.storage.archive.FORMAT", 1)
        export(filled.address, copy)
    address = new_address()
    import_store(copy, address, silent)
    assert everything(address) == expected
    assert problems(address) == []


def test_archive_without_authors(
    filled: WrittenStore, new_address: NewAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions wrote it that did not note what operators did."""
    expected, copy = everything(filled.address), tmp_path / "archive"
    with monkeypatch.context() as before:
        older = without(DATASETS, "changes", "cases")
        older["versions"] = without(DATASETS["versions"], "author", "message")
        for module in ("contract.archive", "shared.archive"):
            before.setattr(f"headwater.storage.{module}.DATASETS", older)
        before.setattr("headwater.storage.archive.FORMAT", 3)
        export(filled.address, copy)
    address = new_address()
    import_store(copy, address, silent)
    assert everything(address) == {**expected, "changes": [], "cases": []}


Value = TypeVar("Value")


def without(columns: Mapping[str, Value], *names: str) -> dict[str, Value]:
    return {name: value for name, value in columns.items() if name not in names}


def test_incomplete_load_is_no_store(filled: WrittenStore, new_address: NewAddress) -> None:
    state, batches = dumped(filled.address)
    address = new_address()
    with open_store(address).load() as load:
        for dataset, rows in batches:
            load.add(dataset, rows[:-1] if dataset == "ops" else rows)
        with pytest.raises(ArchiveError, match=r"\d+ of \d+ rows of ops were imported"):
            load.finish(state, counted(batches))
    assert_no_store_at(address)


@pytest.mark.parametrize("killed", [False, True])
def test_interrupted_import(
    filled: WrittenStore, archive: Path, new_address: NewAddress, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    address = new_address()

    def interrupt(rows: int, expected: int) -> None:
        if rows > expected / 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if killed:  # then nothing is cleaned up
            patched.setattr(SqliteLoad, "discard", lambda _: None)
            patched.setattr(PostgresLoad, "discard", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            import_store(archive, address, interrupt)
    assert_no_store_at(address)
    import_store(archive, address, silent)
    assert everything(address)["totals"] == everything(filled.address)["totals"]


def test_import_into_a_filled_store(filled: WrittenStore, archive: Path, new_address: NewAddress) -> None:
    with pytest.raises(StoreNotEmptyError, match="there is a store already"):
        import_store(archive, filled.address, silent)
    new = new_address()
    open_store(new).open_reader().close()  # as the endpoint makes it when it is started first
    if isinstance(new, SqliteAddress):
        with (
            closing(open_store(new).open_reader()),
            pytest.raises(StoreNotEmptyError, match="another process has the empty store open"),
        ):
            import_store(archive, new, silent)
    import_store(archive, new, silent)
    with pytest.raises(StoreNotEmptyError):
        import_store(archive, new, silent)


# sealing


def test_sealed_store(written: WrittenStore) -> None:
    written.publish({"1": (A, "x")})
    backend = open_store(written.address)
    with pytest.raises(LeaseHeldError):
        backend.seal("moved away")
    written.close()
    assert backend.seal_note() is None
    backend.seal("moved away")
    assert backend.seal_note() == "moved away"
    with closing(backend.open_reader()) as reader, closing(backend.open_writer()) as store:
        for attempt in (
            lambda: WrittenStore(written.address),
            lambda: reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(6)}),
            lambda: store.submit("compact", SOURCE, "{}"),
            lambda: store.revoke(RevokedKind.USER, "u", 60.0),
            lambda: backend.seal("again"),
        ):
            with pytest.raises(SealedStoreError, match="moved away"):
                attempt()
    assert catch_up(written.address, {A: ModelBucket()}) == 2
    assert backend.unseal() == "moved away"
    assert backend.unseal() is None
    WrittenStore(written.address).close()


def test_export_seals(written: WrittenStore, new_address: NewAddress, tmp_path: Path) -> None:
    written.publish({"1": (A, "x")})
    with closing(open_store(written.address).open_reader()) as reader:
        reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(5)})
        with pytest.raises(LeaseHeldError, match="stop the service"):
            export(written.address, tmp_path / "too-early", seal=True)
        written.close()
        export(written.address, tmp_path / "archive", seal=True)
        with pytest.raises(SealedStoreError, match=r"exported to .*/archive .*headwater store unseal"):
            WrittenStore(written.address)
        with pytest.raises(SealedStoreError):
            reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(6)})
        assert catch_up(written.address, {A: ModelBucket()}) == 2
        export(written.address, tmp_path / "again", seal=True)
    new = new_address()
    import_store(tmp_path / "again", new, silent)
    WrittenStore(new).close()
    assert open_store(written.address).unseal() is not None
    WrittenStore(written.address).close()


CONFIG = """\
replication: {{connections: [{{uri: "postgresql://app@127.0.0.1:1024/shop", sslmode: disable}}]}}
storage: {{type: sqlite, path: {path}}}
"""


def test_commands(tmp_path: Path) -> None:
    with closing(WrittenStore(SqliteAddress(str(tmp_path / "old")))) as written:
        fill(written)
    for name in ("old", "new"):
        (tmp_path / f"{name}.yaml").write_text(CONFIG.format(path=f"./{name}"))
    done = headwater("store", "export", "moving", "--seal", "-c", "old.yaml", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "3,000 rows, 4 buckets up to op" in done.out
    assert "the store is sealed" in done.out
    done = headwater("store", "import", "moving", "-c", "new.yaml", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "3,000 rows, 4 buckets up to op" in done.out
    failed = headwater("store", "import", "moving", "-c", "new.yaml", cwd=tmp_path)
    assert failed.code == 1
    assert "there is a store already" in failed.err
    assert "Traceback" not in failed.err
    opened = headwater("store", "unseal", "-c", "old.yaml", cwd=tmp_path)
    assert "is open again; it was exported to" in opened.out
    assert everything(SqliteAddress(str(tmp_path / "new")))["totals"] == everything(written.address)["totals"]
