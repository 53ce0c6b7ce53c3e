"""Stores as files: what is taken in is what was written, and files that are not whole are named before anything is
made of them. Spark does the same, which `tests/spark/test_archive.py` holds."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.bulk.contract import BulkProgress
from headwater.errors import HeadwaterError
from headwater.pipeline import archive_files
from headwater.pipeline.archive import export_store, import_store
from headwater.pipeline.archive_files import ArchiveFile, Manifest, read_manifest, write_manifest
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.archive import ArchiveError
from headwater.storage.open import open_backend
from tests.support.archived_store import everything, fill
from tests.support.local_bulk import LocalEngine
from tests.support.written_store import WrittenStore


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenStore]:
    with closing(WrittenStore(SqliteAddress(str(tmp_path / "old")))) as store:
        fill(store)
        yield store


@pytest.fixture
def archive(written: WrittenStore, tmp_path: Path) -> Path:
    export_store(LocalEngine(), written.address, tmp_path / "archive", lambda _: None)
    return tmp_path / "archive"


@pytest.fixture
def new(tmp_path: Path) -> SqliteAddress:
    return SqliteAddress(str(tmp_path / "new"))


def take_in(archive: Path, address: SqliteAddress) -> list[BulkProgress]:
    reports: list[BulkProgress] = []
    import_store(LocalEngine(), archive, address, reports.append)
    return reports


def rewrite(archive: Path, dataset: str, change: Callable[[pa.Table], pa.Table], format_number: int) -> None:
    """Change the rows of the first file of a dataset, with a manifest of this format that knows the file as it is
    now."""
    manifest = read_manifest(archive)
    (file, *_) = (file for file in manifest.files if file.dataset == dataset)
    path = archive / file.path
    pq.write_table(change(pq.read_table(path)), path)
    renewed = replace(file, bytes=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    files = tuple(renewed if each == file else each for each in manifest.files)
    write_as(archive, replace(manifest, files=files), format_number)


def write_as(archive: Path, manifest: Manifest, format_number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archive_files, "FORMAT", format_number)
        write_manifest(archive, manifest)


def test_a_store_is_the_same_after_a_way_through_files(
    written: WrittenStore, archive: Path, new: SqliteAddress
) -> None:
    reports = take_in(archive, new)
    assert reports[-1].rows == reports[-1].rows_expected > 6000
    assert reports[-1].over
    before, after = everything(written.address), everything(new)
    assert {key for key in before if before[key] != after[key]} == set()


def test_the_manifest_and_the_files_are_for_their_owner_alone(archive: Path) -> None:
    assert (archive / "manifest.json").stat().st_mode & 0o077 == 0, "it has the store's secret"
    assert archive.stat().st_mode & 0o077 == 0
    assert not list(archive.rglob(".*")), "nothing unfinished is left"


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def damage_flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [(damage_cut, "bytes instead of"), (damage_flip, "was changed"), (Path.unlink, "is missing")],
)
def test_a_file_that_is_not_whole_is_named(
    archive: Path, new: SqliteAddress, damage: Callable[[Path], None], said: str
) -> None:
    for file in read_manifest(archive).files:
        copy = archive.with_name(f"copy-{file.dataset}")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(archive, copy)
        damage(copy / file.path)
        with pytest.raises(ArchiveError, match=said) as failure:
            take_in(copy, new)
        assert file.path in str(failure.value)
        assert not Path(new.directory, "store.db").exists()


def test_at_most_five_files_are_named(archive: Path, new: SqliteAddress) -> None:
    files = read_manifest(archive).files
    for file in files:
        (archive / file.path).unlink()
    with pytest.raises(ArchiveError, match=rf", and {len(files) - 5} more"):
        take_in(archive, new)


def test_rows_or_columns_that_the_manifest_does_not_know_are_refused(archive: Path, new: SqliteAddress) -> None:
    changes: list[Callable[[pa.Table], pa.Table]] = [
        lambda table: table.slice(1),
        lambda table: table.append_column("more", pa.nulls(table.num_rows)),
    ]
    for number, change in enumerate(changes):
        copy = archive.with_name(f"copy-{number}")
        shutil.copytree(archive, copy)
        rewrite(copy, "rows", change, archive_files.FORMAT)
        with pytest.raises(ArchiveError, match="has other contents than the manifest says"):
            take_in(copy, new)


def test_an_archive_of_a_later_format_names_the_version_that_reads_it(archive: Path, new: SqliteAddress) -> None:
    write_as(archive, replace(read_manifest(archive), version="99.1"), 99)
    with pytest.raises(ArchiveError, match=r"has format 99, this version reads \d+.*use headwater 99.1"):
        take_in(archive, new)


@pytest.mark.parametrize("content", [b"", b"{}\n{}", b"nonsense", b'{"sha256": 1}\n{}', b"[]\n[]"])
def test_what_is_no_manifest_is_damaged(archive: Path, new: SqliteAddress, content: bytes) -> None:
    (archive / "manifest.json").write_bytes(content)
    with pytest.raises(ArchiveError, match="the manifest is damaged or was changed"):
        take_in(archive, new)


def test_an_archive_is_written_to_a_place_of_its_own(written: WrittenStore, archive: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place, said in ((archive, "is not empty"), (tmp_path / "file" / "below", "can't be made")):
        with pytest.raises(ArchiveError, match=said):
            export_store(LocalEngine(), written.address, place, lambda _: None)
    read_manifest(archive)


def test_a_failed_export_leaves_nothing_and_the_store_open(
    written: WrittenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.store.release(written.lease)

    def full(*_: object) -> ArchiveFile:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headwater.pipeline.archive.describe_file", full)
    with pytest.raises(HeadwaterError, match="No space left on device"):
        export_store(LocalEngine(), written.address, tmp_path / "archive", lambda _: None, seal=True)
    assert list((tmp_path / "archive").iterdir()) == []
    assert open_backend(written.address).seal_note() is None
