"""Exports a store to Parquet files and imports it again, on Spark."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from headwater.bulk.contract import BulkProgress
from headwater.pipeline.archive_files import (
    ArchiveFile,
    Manifest,
    describe_file,
    read_file,
    read_manifest,
    verify_file,
    write_file,
    write_manifest,
)
from headwater.pipeline.engine import Engine, Job, Result, Task, persistently
from headwater.pipeline.progress import ProgressReporter, TaskProgress
from headwater.storage.address import StoreAddress
from headwater.storage.contract.archive import (
    ArchiveError,
    DumpPart,
    DumpView,
    Load,
)
from headwater.storage.open import open_backend

Report = Callable[[BulkProgress], None]

_SCRATCH = ".export"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class ExportJob:
    """The store's frozen view, and the directory to write to."""

    view: DumpView
    directory: str


@dataclass(frozen=True, slots=True)
class ExportTask:
    """Write one file."""

    part: DumpPart

    def run(self, job: ExportJob, number: int, attempt: str) -> ArchiveFile:
        directory = Path(job.directory)
        rows = 0
        with TaskProgress(str(directory / _SCRATCH), number, attempt) as progress:
            for count in write_file(directory, job.view, self.part, number, attempt):
                rows += count
                progress.add(count)
        return describe_file(directory, self.part.dataset, number, rows)


@dataclass(frozen=True, slots=True)
class VerifyTask:
    """Check that a file is complete and unchanged."""

    file: ArchiveFile

    def run(self, job: str, number: int, attempt: str) -> str:
        return verify_file(Path(job), self.file)


@dataclass(frozen=True, slots=True)
class LoadJob:
    """The directory to read from, and the store to load. `progress` is a directory on the driver's machine."""

    directory: str
    address: StoreAddress
    progress: str


@dataclass(frozen=True, slots=True)
class LoadTask:
    """Load one file."""

    file: ArchiveFile

    def run(self, job: LoadJob, number: int, attempt: str) -> int:
        with TaskProgress(job.progress, number, attempt) as progress:
            load_file(job, self.file, progress.add)
        return self.file.rows


def load_file(job: LoadJob, file: ArchiveFile, count: Callable[[int], None]) -> None:
    """Load a file. Calls `count` with the number of rows of each batch."""

    def batches() -> Iterator[Sequence[Sequence[object]]]:
        for batch in read_file(Path(job.directory), file):
            yield batch
            count(len(batch))

    open_backend(job.address).load_rows(file.dataset, batches())


def export_store(
    engine: Engine, address: StoreAddress, directory: Path, progress: Report, *, seal: bool = False
) -> Manifest:
    """Write the store, as it is at one moment, into a new or empty directory, which executors must reach under the same
    path. With `seal`, the store can't be written to from then on, unless the export fails.

    Raises ArchiveError, and LeaseHeldError when the store is to be sealed while a replicator writes to it.
    """
    directory = directory.resolve()
    _claim(directory)
    try:
        with _sealed(address, f"exported to {directory}", seal=seal):
            return _export(engine, address, directory, progress)
    except BaseException:
        for made in directory.iterdir():
            shutil.rmtree(made, ignore_errors=True)
        raise
    finally:
        shutil.rmtree(directory / _SCRATCH, ignore_errors=True)


def _claim(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = any(directory.iterdir())
    except OSError as error:
        raise ArchiveError(f"the directory can't be made: {error.strerror}", str(directory), "name another") from error
    if taken:
        raise ArchiveError("the directory is not empty", str(directory), "name a new one")


@contextmanager
def _sealed(address: StoreAddress, note: str, *, seal: bool) -> Iterator[None]:
    backend = open_backend(address)
    if not seal or backend.seal_note() is not None:
        yield
        return
    backend.seal(note)
    try:
        yield
    except BaseException:
        backend.unseal()
        raise


def _export(engine: Engine, address: StoreAddress, directory: Path, progress: Report) -> Manifest:
    with open_backend(address).dump(directory / _SCRATCH / "copy") as frozen:
        expected = sum(part.rows for part in frozen.parts)
        tasks = [ExportTask(part) for part in frozen.parts]
        job = ExportJob(frozen.view, str(directory))
        with ProgressReporter("export", str(directory / _SCRATCH), expected, len(tasks), progress):
            files = persistently(lambda: _run(engine, job, tasks, "export of a store"))
        manifest = Manifest(frozen.state, tuple(files), version("headwater"), time.time(), str(address))
        counts: Counter[str] = Counter()
        for part in frozen.parts:
            counts[part.dataset] += part.rows
        if manifest.counts() != counts:
            raise ArchiveError("not all rows of the store were written", str(directory), "export it again")
    write_manifest(directory, manifest)
    return manifest


def import_store(engine: Engine, directory: Path, address: StoreAddress, progress: Report) -> Manifest:
    """Build a store from the archive in a directory. All files are verified first, and the store is complete or does
    not exist.

    Raises ArchiveError when the archive is not complete, StoreNotEmptyError when there is a store already.
    """
    directory = directory.resolve()
    manifest = read_manifest(directory)
    open_backend(address).check_empty()
    persistently(lambda: _verify(engine, directory, manifest))
    persistently(lambda: _load(engine, directory, manifest, address, progress))
    return manifest


def _load(engine: Engine, directory: Path, manifest: Manifest, address: StoreAddress, progress: Report) -> None:
    with open_backend(address).load() as loading:
        _load_all(engine, directory, manifest, loading, progress)
        loading.finish(manifest.state, manifest.counts())


def _load_all(engine: Engine, directory: Path, manifest: Manifest, loading: Load, progress: Report) -> None:
    """Load the tables first, since rows belong to them."""
    with tempfile.TemporaryDirectory(prefix="headwater-import-") as scratch:
        job = LoadJob(str(directory), loading.address, scratch)
        for file in manifest.files:
            if file.dataset == "tables":
                load_file(job, file, lambda _: None)
        rest = [file for file in manifest.files if file.dataset != "tables"]
        rows = sum(file.rows for file in rest)
        if not loading.parallel:
            _load_here(job, rest, rows, progress)
            return
        with ProgressReporter("import", scratch, rows, len(rest), progress):
            _run(engine, job, [LoadTask(file) for file in rest], "import of a store")


def _verify(engine: Engine, directory: Path, manifest: Manifest) -> None:
    found = _run(engine, str(directory), [VerifyTask(file) for file in manifest.files], "check of an archive")
    wrong = [text for text in found if text]
    if wrong:
        more = f", and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ArchiveError(
            f"the archive is not whole: {'; '.join(wrong[:_SHOWN])}{more}",
            str(directory),
            "copy it again, or export again",
        )


def _run(engine: Engine, job: Job, tasks: Sequence[Task[Job, Result]], what: str) -> list[Result]:
    """Run tasks. Spark starts here, after everything that can be checked without it."""
    with engine.run(job, what) as run:
        return run.tasks(tasks)


def _load_here(job: LoadJob, files: Sequence[ArchiveFile], rows: int, progress: Report) -> None:
    """Load one file after the other, in this process, for a store that can only have one writer."""
    done = finished = 0

    def count(batch: int) -> None:
        nonlocal done
        done += batch
        progress(BulkProgress(done, rows, finished, len(files), "import"))

    for file in files:
        load_file(job, file, count)
        finished += 1
    progress(BulkProgress(done, rows, len(files), len(files), "import", over=True))
