"""Exports a store to a file and imports it again, for backup and for moving a store between back ends.

An archive is one line of text with its format, a zstd stream of length-prefixed msgpack messages, and a trailer. The
first message is the header, the others are a dataset's name with some of its rows; an empty one is the end. The trailer
has the length and the SHA-256 of all that is before it. Neither side holds more than a batch of rows in memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import zstandard

from headwater.storage.address import StoreAddress
from headwater.storage.contract.archive import ArchivedState, ArchiveError, Dump
from headwater.storage.open import open_store
from headwater.storage.shared.common import sync_path

FORMAT: Final = 4
_OF_ONE_SOURCE: Final = 1
"""The format in which bucket definitions did not say of which source they are: there was one."""
_WITHOUT_AUTHORS: Final = 3
"""The last format in which versions did not say who deployed them, and why."""

ReportRows = Callable[[int, int], None]
"""Is called with the rows done so far, and those of the whole store."""

_LENGTH = struct.Struct(">I")
_TRAILER = struct.Struct(">Q32s")
_BLOCK = 1 << 20
_LONGEST_LINE = 200


@dataclass(frozen=True, slots=True)
class ArchiveHeader:
    """What an archive is of, and the number of rows in it by dataset. `created` is in seconds since 1970."""

    version: str
    created: float
    origin: str
    state: ArchivedState
    counts: Mapping[str, int]

    @property
    def rows(self) -> int:
        return sum(self.counts.values())


def export_store(address: StoreAddress, path: Path, report: ReportRows, *, seal: bool = False) -> ArchiveHeader:
    """Write the store, as it is at one moment, to a new file. With `seal`, the store can't be written to from then on,
    unless the export fails.

    Raises ArchiveError, and LeaseHeldError when the store is to be sealed while a replicator writes to it.
    """
    path = path.resolve()
    with _new_file(path) as (file, unfinished), _sealed(address, f"exported to {path}", seal=seal):
        with open_store(address).dump() as dump, _content_errors(path):
            header = ArchiveHeader(version("headwater"), time.time(), str(address), dump.state, dump.counts)
            _write(file, _messages(dump, header, path, report))
        file.flush()
        os.fsync(file.fileno())
        _give_name(unfinished, path)
        return header


@contextmanager
def _sealed(address: StoreAddress, note: str, *, seal: bool) -> Iterator[None]:
    store = open_store(address)
    if not seal or store.seal_note() is not None:
        yield
        return
    store.seal(note)
    try:
        yield
    except BaseException:
        store.unseal()
        raise


@contextmanager
def _new_file(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A new file beside `path`, for its owner alone since it will hold the store's secret, and its path. It is removed
    unless it is given another name."""
    if path.exists():
        raise _exists(path)
    try:
        handle, name = tempfile.mkstemp(".unfinished", f".{path.name}.", path.parent)
        try:
            with open(handle, "wb") as file:
                yield file, Path(name)
        finally:
            Path(name).unlink(missing_ok=True)
    except OSError as error:
        raise ArchiveError(f"the file can't be written: {error.strerror}", str(path), "name another one") from error


def _give_name(unfinished: Path, path: Path) -> None:
    """Rename the file, on disk too. Raises ArchiveError when another process has made a file of that name."""
    try:
        path.open("xb").close()  # unlike a rename, this replaces no file; unlike a link, every file system can do it
    except FileExistsError as error:
        raise _exists(path) from error
    try:
        unfinished.rename(path)
        sync_path(path.parent)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _exists(path: Path) -> ArchiveError:
    return ArchiveError("the file exists already", str(path), "name a new one")


@contextmanager
def _content_errors(path: Path) -> Iterator[None]:
    """Turn errors of the libraries that pack and unpack messages into ours."""
    try:
        yield
    except (zstandard.ZstdError, msgspec.MsgspecError, struct.error) as error:
        what = f"the archive's contents are not what this version writes: {error}"
        raise ArchiveError(what, str(path), "export the store again") from error


def _messages(dump: Dump, header: ArchiveHeader, path: Path, report: ReportRows) -> Iterator[object]:
    yield header
    written: Counter[str] = Counter()
    report(0, header.rows)
    for dataset, rows in dump.batches:
        yield dataset, rows
        written[dataset] += len(rows)
        report(written.total(), header.rows)
    if written != Counter(header.counts):
        raise ArchiveError("not all rows of the store were written", str(path), "export it again")


def _write(file: BinaryIO, messages: Iterator[object]) -> None:
    encode, compressor = msgspec.msgpack.Encoder().encode, zstandard.ZstdCompressor().compressobj()
    digest, length = hashlib.sha256(), 0

    def write(block: bytes) -> None:
        nonlocal length
        file.write(block)
        digest.update(block)
        length += len(block)

    write(f"headwater-archive {FORMAT} {version('headwater')}\n".encode())
    for message in messages:
        payload = encode(message)
        write(compressor.compress(_LENGTH.pack(len(payload)) + payload))
    write(compressor.compress(_LENGTH.pack(0)) + compressor.flush())
    file.write(_TRAILER.pack(length, digest.digest()))


def import_store(path: Path, address: StoreAddress, report: ReportRows) -> ArchiveHeader:
    """Build a store from an archive. The whole file is verified first, and the store is complete or does not exist.

    Raises ArchiveError when the archive is not complete, StoreNotEmptyError when there is a store already.
    """
    store = open_store(address)
    with _opened(path) as (file, found), _content_errors(path):
        store.check_empty()
        _verify(file, path)
        stream = zstandard.ZstdDecompressor().stream_reader(file)
        header = msgspec.msgpack.decode(_payload(stream), type=ArchiveHeader)
        decode = msgspec.msgpack.Decoder(tuple[str, list[tuple[Any, ...]]]).decode
        done, unowned = 0, list[tuple[Any, ...]]()
        with store.load() as load:
            report(done, header.rows)
            while payload := _payload(stream):
                dataset, rows = decode(payload)
                if found <= _WITHOUT_AUTHORS and dataset == "versions":
                    rows = [(*row, "", "") for row in rows]
                if found == _OF_ONE_SOURCE and dataset == "definitions":
                    unowned += rows
                else:
                    load.add(dataset, rows)
                if unowned and dataset == "sources":
                    load.add("definitions", [(rows[0][0], *row) for row in unowned])
                    unowned = []
                done += len(rows)
                report(done, header.rows)
            load.finish(header.state, header.counts)
    return header


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """An archive that this version reads, after its first line, and its format."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise ArchiveError(
            f"the archive can't be read: {error.strerror}",
            str(path),
            "name the file that `headwater store export` wrote, and make sure that the export is finished",
        ) from error
    with file:
        line = re.fullmatch(rb"headwater-archive (\d+) (\S+)\n", file.readline(_LONGEST_LINE))
        if line is None:
            raise ArchiveError(
                "the file is no archive of a store", str(path), "name the file that `headwater store export` wrote"
            )
        found, whose = (word.decode(errors="replace") for word in line.groups())
        if found not in map(str, range(_OF_ONE_SOURCE, FORMAT + 1)):
            raise ArchiveError(
                f"the archive has format {found}, this version reads formats up to {FORMAT}",
                str(path),
                f"use headwater {whose}, which wrote it",
            )
        yield file, int(found)


def _verify(file: BinaryIO, path: Path) -> None:
    """Check that nothing is missing or changed. Leaves the file where it was."""
    begin = file.tell()
    content = os.fstat(file.fileno()).st_size - _TRAILER.size
    file.seek(max(content, 0))
    trailer = file.read()
    if len(trailer) != _TRAILER.size or _TRAILER.unpack(trailer)[0] != content:
        raise ArchiveError("the end of the archive is missing", str(path), "copy it again, or export again")
    file.seek(0)
    digest = hashlib.sha256()
    for at in range(0, content, _BLOCK):
        digest.update(file.read(min(_BLOCK, content - at)))
    if _TRAILER.pack(content, digest.digest()) != trailer:
        raise ArchiveError("the archive is damaged or was changed", str(path), "copy it again, or export again")
    file.seek(begin)


def _payload(stream: zstandard.ZstdDecompressionReader) -> bytes:
    """The next message; empty at the end."""
    (length,) = _LENGTH.unpack(stream.read(_LENGTH.size))
    return stream.read(length)
