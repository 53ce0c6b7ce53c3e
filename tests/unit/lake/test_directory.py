"""What a lake's directory makes of files that are not as it left them, of crashes and of full disks."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headwater.errors import HeadwaterError
from headwater.lake.directory import open_lake
from headwater.lake.manifest import DamagedLakeError, LakeDirectoryError, LakeFile, Manifest
from headwater.storage.address import SqliteAddress
from tests.support.lakes import assert_is_store, export, manifest_of
from tests.support.written_store import WrittenStore

A = 'todos["a"]'


@pytest.fixture
def written(tmp_path: Path) -> Iterator[WrittenStore]:
    with closing(WrittenStore(SqliteAddress(str(tmp_path / "store")))) as store:
        store.publish({str(i): (A, f"text {i}") for i in range(100)})
        yield store


@pytest.fixture
def root(written: WrittenStore, tmp_path: Path) -> Path:
    """A lake of the store."""
    root = tmp_path / "lake"
    export(written.address, root)
    return root


def assert_refused(written: WrittenStore, root: Path, error: type[HeadwaterError], words: str) -> None:
    """Refused without any change; begun anew only if that is asked for."""
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(error, match=re.escape(words)):
        export(written.address, root)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("table", ["ops", "rows", "buckets"])
def test_damaged_file(written: WrittenStore, root: Path, table: str) -> None:
    path = max((root / table).iterdir())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert_refused(written, root, DamagedLakeError, f"has {len(whole) - 1} bytes, and had {len(whole)} ({path})")
    path.unlink()
    assert_refused(written, root, DamagedLakeError, f"a file of the lake is missing ({path}); put the file back, or")
    path.write_bytes(whole)
    assert export(written.address, root).ops == 0
    path.write_bytes(b"")
    export(written.address, root, reset=True)
    assert_is_store(root, written.address)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]", b'{"format": 1}', b'{"format": "x", "store": ""}'])
def test_damaged_manifest(written: WrittenStore, root: Path, content: bytes) -> None:
    (root / "manifest.json").write_bytes(content)
    assert_refused(written, root, DamagedLakeError, "the manifest can't be read")
    export(written.address, root, reset=True)
    assert_is_store(root, written.address)


def test_missing_manifest(written: WrittenStore, root: Path) -> None:
    (root / "manifest.json").unlink()
    assert_refused(written, root, DamagedLakeError, "the manifest is missing")
    export(written.address, root, reset=True)
    assert_is_store(root, written.address)


def test_manifest_of_newer_version(written: WrittenStore, root: Path) -> None:
    (root / "manifest.json").write_text(json.dumps(manifest_of(root) | {"format": 2}))
    assert_refused(written, root, LakeDirectoryError, "the lake has format 2, this version writes format 1")


@pytest.mark.parametrize("name", ["notes.txt", "ops/mine.parquet", "rows/part"])
def test_foreign_file(written: WrittenStore, root: Path, name: str) -> None:
    (root / name).write_text("mine")
    assert_refused(written, root, LakeDirectoryError, f"something that is no part of a lake ({root / name})")
    with pytest.raises(LakeDirectoryError):
        export(written.address, root, reset=True)
    assert (root / name).read_text() == "mine"


def test_directory_in_use(written: WrittenStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(LakeDirectoryError, match="it is a file"):
        export(written.address, tmp_path / "file")
    (tmp_path / "full" / "ops").mkdir(parents=True)
    (tmp_path / "full" / "manifest.json").mkdir()
    with pytest.raises(LakeDirectoryError, match="something that is no part of a lake"):
        export(written.address, tmp_path / "full", reset=True)


def test_what_a_crash_leaves(written: WrittenStore, root: Path) -> None:
    left = [root / "ops" / f"{5:020d}-{9:020d}.parquet", root / "rows" / f".{5:020d}-{9:020d}.parquet"]
    kept = [root / "ops" / "_SUCCESS", root / "rows" / ".crc", root / ".DS_Store"]
    for path in (*left, *kept, root / ".unfinished.json"):
        path.write_bytes(b"half")
    export(written.address, root)
    assert [path.exists() for path in (*left, *kept)] == [False, False, True, True, True]
    assert not (root / ".unfinished.json").exists()
    assert_is_store(root, written.address)


def test_two_exports(written: WrittenStore, root: Path) -> None:
    with (
        open_lake(root, manifest_of(root)["store"]),
        pytest.raises(LakeDirectoryError, match="another export writes to the lake"),
    ):
        export(written.address, root)
    assert export(written.address, root).ops == 0


@pytest.mark.parametrize("number", range(3), ids=["before the manifest", "before the name", "before both names"])
def test_fault_within_commit(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The disk refuses a step: the lake is what it was, or what it was to be."""
    rename, name = Path.rename, f"ops/{10**9:020d}-{10**9 + 1:020d}.parquet"
    left = [number]

    def refuse(path: Path, target: Path) -> Path:
        if not left[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        left[0] -= 1
        return rename(path, target)

    before = manifest_of(root)
    with open_lake(root, before["store"]) as lake:
        files = {path: LakeFile(*file) for path, file in before["files"].items()}
        with lake.new_file(name) as file:
            file.write(b"new")
        after = Manifest(1, before["store"], position=10**9 + 1, files={**files, name: LakeFile(0, 3)})
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", refuse)
            with pytest.raises(OSError, match="Input/output error"):
                lake.commit(after)
    with open_lake(root, before["store"]) as lake:
        assert lake.manifest.position == (10**9 + 1 if number else before["position"])
        assert (root / name).exists() == bool(number)
    assert not (root / ".next.json").exists()
