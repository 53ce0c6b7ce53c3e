"""The files of an archived store: Parquet files by dataset, and a manifest that lists them.

Imports no pyspark: tasks on executors write, verify and read single files.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.storage.contract.archive import DATASETS, ArchiveError, DumpPart, DumpView, Row, StoreState
from headwater.storage.open import open_backend

MANIFEST = "manifest.json"
FORMAT = 4

_ARROW = {int: pa.int64(), str: pa.string(), float: pa.float64(), bool: pa.bool_(), bytes: pa.binary()}
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """A file of the archive, by its path within. `sha256` is hexadecimal."""

    path: str
    dataset: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of an archive."""

    state: StoreState
    files: tuple[ArchiveFile, ...]
    version: str
    created: float
    origin: str

    def counts(self) -> Counter[str]:
        """Rows by dataset."""
        counts: Counter[str] = Counter()
        for file in self.files:
            counts[file.dataset] += file.rows
        return counts


def schema(dataset: str) -> pa.Schema:
    """The columns of a dataset's files."""
    return pa.schema([(name, _ARROW[kind]) for name, kind in DATASETS[dataset].items()])


def write_file(directory: Path, view: DumpView, part: DumpPart, number: int, attempt: str) -> Iterator[int]:
    """Write a part of a store as one file, which is synced to disk before it gets its name. Yields the number of rows
    of each batch."""
    path = directory / file_path(part.dataset, number)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}-{attempt}")
    columns = schema(part.dataset)
    # Segments are compressed already
    codec = "none" if part.dataset == "segments" else "zstd"
    try:
        with pq.ParquetWriter(unfinished, columns, compression=codec) as writer:
            for rows in open_backend(view.address).read_part(view.snapshot, part):
                writer.write_batch(_record_batch(rows, columns))
                yield len(rows)
        with unfinished.open("rb") as file:
            os.fsync(file.fileno())
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)


def file_path(dataset: str, number: int) -> str:
    """The path of file `number` within the archive."""
    return f"{dataset}/part-{number:05d}.parquet"


def describe_file(directory: Path, dataset: str, number: int, rows: int) -> ArchiveFile:
    """The manifest's entry for a file."""
    path = directory / file_path(dataset, number)
    return ArchiveFile(file_path(dataset, number), dataset, rows, path.stat().st_size, _sha256(path))


def _record_batch(rows: Sequence[Row], columns: pa.Schema) -> pa.RecordBatch:
    cells = list(zip(*rows, strict=True))
    arrays = [
        pa.array([bool(cell) for cell in column] if pa.types.is_boolean(field.type) else column, field.type)
        for column, field in zip(cells, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def read_file(directory: Path, file: ArchiveFile) -> Iterator[list[Row]]:
    """The rows of a file, in batches."""
    with pq.ParquetFile(directory / file.path) as parquet:
        for group in range(parquet.num_row_groups):
            columns = parquet.read_row_group(group).columns
            rows: list[Row] = list(zip(*(column.to_pylist() for column in columns), strict=True))
            yield rows


def verify_file(directory: Path, file: ArchiveFile) -> str:
    """What is wrong with a file; empty when it is as in the manifest."""
    path = directory / file.path
    if not path.is_file():
        return f"{file.path} is missing"
    size = path.stat().st_size
    if size != file.bytes:
        return f"{file.path} has {size} bytes instead of {file.bytes}"
    if _sha256(path) != file.sha256:
        return f"{file.path} was changed"
    with pq.ParquetFile(path) as parquet:
        if parquet.schema_arrow != schema(file.dataset) or parquet.metadata.num_rows != file.rows:
            return f"{file.path} has other contents than the manifest says"
    return ""


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest, synced to disk. It is the last step: an archive without a manifest is incomplete."""
    content = orjson.dumps({"format": FORMAT, **asdict(manifest)}, option=orjson.OPT_INDENT_2)
    text = orjson.dumps({"sha256": hashlib.sha256(content).hexdigest()}) + b"\n" + content
    unfinished = directory / f".{MANIFEST}"
    with unfinished.open("wb") as file:
        unfinished.chmod(0o600)  # it holds the store's secret
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(directory / MANIFEST)


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest. Raises ArchiveError when there is none, or it was damaged or changed."""
    path = directory / MANIFEST
    try:
        first, _, content = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise ArchiveError(
            f"there is no archive of a store: its manifest can't be read ({error.strerror})",
            str(path),
            "name the directory that `headwater store export` wrote, and make sure that the export is finished",
        ) from error
    try:
        whole = orjson.loads(first)["sha256"] == hashlib.sha256(content).hexdigest()
        found: Mapping[str, object] = orjson.loads(content)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        whole, found = False, {}
    if not whole:
        raise ArchiveError("the manifest is damaged or was changed", str(path), "copy the archive again")
    if found["format"] != FORMAT:
        raise ArchiveError(
            f"the archive has format {found['format']}, this version reads {FORMAT}",
            str(path),
            f"use headwater {found['version']}, which wrote it",
        )
    return _decoded(found)


def _decoded(found: Mapping[str, object]) -> Manifest:
    state, files = found["state"], found["files"]
    assert isinstance(state, dict)
    assert isinstance(files, list)
    return Manifest(
        StoreState(**state),
        tuple(ArchiveFile(**file) for file in files),
        str(found["version"]),
        float(str(found["created"])),
        str(found["origin"]),
    )
