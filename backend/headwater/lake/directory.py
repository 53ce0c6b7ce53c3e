"""The directory of a lake: files appear in it once they are complete, in steps that a crash can't split.

A file is written under a hidden name, which Spark does not read. Then the manifest that has it is written to
`.next.json`: from that moment on it counts. Then the file gets its name, and the manifest its own. Whoever opens the
directory after a crash finishes these steps, or removes hidden files that no manifest has.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from headwater.failpoints import failpoint
from headwater.lake.manifest import FORMAT, LakeDirectoryError, LakeFile, Manifest, damaged, decode, encode
from headwater.storage.shared.common import sync_path

MANIFEST = "manifest.json"
FOLDERS = ("ops", "rows", "buckets")
_NEXT, _UNFINISHED, _LOCK = ".next.json", ".unfinished.json", ".lock"
_OURS = re.compile(r"\.?\d{20}(-\d{20})?\.parquet")


@contextmanager
def open_lake(root: Path, store: str, *, reset: bool = False) -> Iterator[LakeDirectory]:
    """The lake in a directory, to write to until the context ends; a new one of `store` (see `HistoryState`) if it is
    empty or does not exist, or with `reset`. Raises LakeDirectoryError, DamagedLakeError, and OSError."""
    if root.exists() and not root.is_dir():
        raise LakeDirectoryError("it is a file", str(root), "name a directory")
    root.mkdir(parents=True, exist_ok=True)
    _check_entries(root)
    with _locked(root):
        yield LakeDirectory(root, _opened(root, store, reset=reset))


def hidden(path: str) -> str:
    """The name of a file of the lake until it is part of it."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/.{name}"


class LakeDirectory:
    """A lake that nobody else writes to. Used by one thread."""

    def __init__(self, root: Path, manifest: Manifest) -> None:
        self._root = root
        self._manifest = manifest

    @property
    def where(self) -> str:
        """Names the lake in messages."""
        return str(self._root)

    @property
    def manifest(self) -> Manifest:
        """What the lake consists of."""
        return self._manifest

    @contextmanager
    def new_file(self, path: str) -> Iterator[BinaryIO]:
        """A file to be filled, which becomes part of the lake by a commit of a manifest that has it. It is removed when
        the context raises."""
        unfinished = self._root / hidden(path)
        try:
            with unfinished.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise
        failpoint("lake.after_file")

    def commit(self, manifest: Manifest) -> None:
        """Make the lake what the manifest says, whose new files have been filled. After an error, open the lake
        again."""
        before = self._manifest.files
        for folder in FOLDERS:
            sync_path(self._root / folder)
        _replace(self._root, _NEXT, manifest)
        failpoint("lake.after_next")
        _take_over(self._root, manifest, before)
        self._manifest = manifest
        failpoint("lake.after_commit")
        for path in before.keys() - manifest.files.keys():
            (self._root / path).unlink(missing_ok=True)


def _opened(root: Path, store: str, *, reset: bool) -> Manifest:
    """Finish or undo what a crash has left, and check that the rest is as it was."""
    for folder in FOLDERS:
        (root / folder).mkdir(exist_ok=True)
    if reset:
        (root / _NEXT).unlink(missing_ok=True)
        _replace(root, MANIFEST, Manifest(FORMAT, store))
    elif (root / _NEXT).exists():
        _take_over(root, _read(root / _NEXT), {})
    elif not (root / MANIFEST).exists():
        if any(not entry.name.startswith((".", "_")) for entry in _entries(root)):
            raise damaged("the manifest is missing", str(root / MANIFEST))
        _replace(root, MANIFEST, Manifest(FORMAT, store))
    manifest = _read(root / MANIFEST)
    _check_files(root, manifest.files)
    _sweep(root, manifest.files)
    return manifest


def _take_over(root: Path, manifest: Manifest, before: Mapping[str, LakeFile]) -> None:
    """Give new files their names, and the manifest its own."""
    for path in manifest.files.keys() - before.keys():
        with suppress(FileNotFoundError):  # it has its name from before a crash
            (root / hidden(path)).rename(root / path)
        failpoint("lake.after_name")
    for folder in FOLDERS:
        sync_path(root / folder)
    (root / _NEXT).rename(root / MANIFEST)
    sync_path(root)


def _check_entries(root: Path) -> None:
    """Refuse a directory that holds anything else than a lake: nothing of it is to be taken for ours, or removed."""
    for entry in (*root.iterdir(), *_entries(root)):
        if entry.parent != root:
            ours = _OURS.fullmatch(entry.name) is not None
        else:
            ours = entry.is_dir() if entry.name in FOLDERS else entry.name == MANIFEST and entry.is_file()
        if not ours and not entry.name.startswith((".", "_")):
            fix = "choose a directory of its own for the lake, or move the file away"
            raise LakeDirectoryError("the directory holds something that is no part of a lake", str(entry), fix)


def _entries(root: Path) -> Iterator[Path]:
    """What is in the folders."""
    for folder in FOLDERS:
        if (root / folder).is_dir():
            yield from (root / folder).iterdir()


def _check_files(root: Path, files: Mapping[str, LakeFile]) -> None:
    for path, file in files.items():
        try:
            size = (root / path).stat().st_size
        except FileNotFoundError:
            raise damaged("a file of the lake is missing", str(root / path)) from None
        if size != file.bytes:
            raise damaged(f"a file of the lake has {size} bytes, and had {file.bytes}", str(root / path))


def _sweep(root: Path, files: Mapping[str, LakeFile]) -> None:
    """Remove what a crash has left."""
    for entry in list(_entries(root)):
        if _OURS.fullmatch(entry.name) and f"{entry.parent.name}/{entry.name}" not in files:
            entry.unlink()
    (root / _UNFINISHED).unlink(missing_ok=True)


@contextmanager
def _locked(root: Path) -> Iterator[None]:
    with (root / _LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fix = "stop the other one, or name another directory"
            raise LakeDirectoryError("another export writes to the lake", str(root), fix) from None
        yield


def _replace(root: Path, name: str, manifest: Manifest) -> None:
    """Write a manifest, in one step."""
    unfinished = root / _UNFINISHED
    with unfinished.open("wb") as file:
        file.write(encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(root / name)
    sync_path(root)


def _read(path: Path) -> Manifest:
    return decode(path.read_bytes(), str(path))
