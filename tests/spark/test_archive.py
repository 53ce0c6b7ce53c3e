"""A whole store as files, and back: nothing lost, nothing half, and devices that notice nothing."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headwater.bulk.contract import BulkProgress
from headwater.oplog.lsn import Lsn
from headwater.pipeline import archive
from headwater.pipeline.archive import export_store, import_store
from headwater.pipeline.archive_files import ArchiveFile, Manifest
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.archive import ArchiveError, StoreNotEmptyError
from headwater.storage.contract.seal import SealedStoreError
from headwater.storage.contract.store import LeaseHeldError, StoreError
from headwater.storage.open import open_backend
from headwater.storage.postgres.bulk.load import PostgresLoad
from headwater.storage.sqlite.bulk.load import SqliteLoad
from tests.support.archived_store import BUCKETS, A, B, everything, fill
from tests.support.command import headwater
from tests.support.fix_postgres import SourceDb
from tests.support.model_device import ModelBucket
from tests.support.store_file import store_file
from tests.support.written_store import SOURCE, WrittenStore, catch_up, shown

pytestmark = pytest.mark.spark


@pytest.fixture
def engine(spark: Spark) -> SparkEngine:
    return SparkEngine(spark)


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str, str], StoreAddress]:
    """`place(back_end, name)` is where a store may be."""

    def make(back_end: str, name: str) -> StoreAddress:
        if back_end == "sqlite":
            return SqliteAddress(str(tmp_path / name))
        database: SourceDb = request.getfixturevalue("source_db")
        return PostgresAddress(database.dsn, name, "test")

    return make


@pytest.fixture
def written(place: Callable[[str, str], StoreAddress]) -> Iterator[WrittenStore]:
    store = WrittenStore(place("sqlite", "old"))
    fill(store)
    yield store
    store.close()


def export(engine: SparkEngine, address: StoreAddress, directory: Path, *, seal: bool = False) -> Manifest:
    return export_store(engine, address, directory, lambda _: None, seal=seal)


def take_in(engine: SparkEngine, directory: Path, address: StoreAddress) -> None:
    import_store(engine, directory, address, lambda _: None)


def assert_nothing_at(address: StoreAddress) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        open_backend(address).history_limits()


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(["sqlite"], marks=pytest.mark.long),
        ["postgres", "sqlite"],
        pytest.param(["postgres", "postgres"], marks=pytest.mark.long),
    ],
    ids="-".join,
)
def test_a_store_that_moved_is_the_same_to_the_byte_and_goes_on(
    engine: SparkEngine,
    written: WrittenStore,
    place: Callable[[str, str], StoreAddress],
    tmp_path: Path,
    way: list[str],
) -> None:
    device = {name: ModelBucket() for name in BUCKETS}
    catch_up(written.address, device)
    address = written.address
    for number, back_end in enumerate(way):
        export(engine, address, tmp_path / f"archive-{number}")
        before, address = everything(address), place(back_end, f"new_{number}")
        take_in(engine, tmp_path / f"archive-{number}", address)
        after = everything(address)
        assert {key for key in before if before[key] != after[key]} == set()
    moved = WrittenStore(address)
    moved.rows = dict(written.rows)
    moved.write({"3": (A, "written after the move"), "4": None})
    assert catch_up(address, device) == 2  # nothing but the news
    assert shown(device) == moved.standing()
    moved.truncate()
    assert moved.table > written.table
    moved.close()
    with closing(open_backend(address).open_reader()) as reader:
        assert reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(999)}) == {"u/1": 3}


@pytest.mark.parametrize("back_end", [pytest.param("sqlite", marks=pytest.mark.long), "postgres"])
def test_an_export_of_a_running_store_is_one_moment_of_it(
    engine: SparkEngine, place: Callable[[str, str], StoreAddress], tmp_path: Path, back_end: str
) -> None:
    running = WrittenStore(place(back_end, "running"))
    first = running.publish({str(i): (A if i % 2 else B, "x") for i in range(500)})
    truth = {int(first.op_id): running.standing()}
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            changes = {str(i): (A if (i + number) % 2 else B, f"{number}") for i in range(number % 7, 500, 50)}
            checkpoint = running.write(changes)
            truth[checkpoint.op_id] = running.standing()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        moment = export(engine, running.address, tmp_path / "archive").state.checkpoint
    finally:
        stop.set()
        writer.join()
        running.close()
    assert moment is not None
    assert max(truth) > moment, "nothing was written meanwhile"
    take_in(engine, tmp_path / "archive", place("sqlite", "copy"))
    device = {name: ModelBucket() for name in (A, B)}
    catch_up(place("sqlite", "copy"), device)
    assert shown(device) == truth[moment]


@pytest.mark.parametrize("back_end", [pytest.param("sqlite", marks=pytest.mark.long), "postgres"])
def test_a_sealed_store_refuses_every_writer_and_says_where_it_went(
    engine: SparkEngine, place: Callable[[str, str], StoreAddress], tmp_path: Path, back_end: str
) -> None:
    address = place(back_end, "old")
    writer = WrittenStore(address)
    writer.publish({"1": (A, "x")})
    with closing(open_backend(address).open_reader()) as reader, closing(writer):
        reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(5)})
        with pytest.raises(LeaseHeldError, match="stop the service"):
            export(engine, address, tmp_path / "too-early", seal=True)
        writer.close()
        export(engine, address, tmp_path / "archive", seal=True)
        assert (open_backend(address).seal_note() or "").endswith("/archive")
        with pytest.raises(SealedStoreError, match=r"exported to .*/archive .*headwater store unseal"):
            WrittenStore(address)
        with pytest.raises(SealedStoreError):
            reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(6)})
        with closing(open_backend(address).open_store()) as store, pytest.raises(SealedStoreError):
            store.submit("compact", SOURCE, "{}")
        device = {A: ModelBucket()}
        assert catch_up(address, device) == 2
        export(engine, address, tmp_path / "again", seal=True)
    take_in(engine, tmp_path / "again", place(back_end, "new"))
    WrittenStore(place(back_end, "new")).close()
    assert open_backend(address).unseal() is not None
    WrittenStore(address).close()


def test_a_store_whose_export_failed_is_not_sealed(engine: SparkEngine, written: WrittenStore, tmp_path: Path) -> None:
    written.store.release(written.lease)
    assert isinstance(written.address, SqliteAddress)
    with store_file(written.address.directory) as db:
        db.execute("delete from segment_blobs where id = (select max(id) from segment_blobs)")
    with pytest.raises(ArchiveError, match="not all rows"):
        export(engine, written.address, tmp_path / "archive", seal=True)
    assert open_backend(written.address).seal_note() is None
    with pytest.raises(ArchiveError, match="there is no archive of a store"):
        take_in(engine, tmp_path / "archive", SqliteAddress(str(tmp_path / "new")))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-10])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def remove(file: Path) -> None:
    file.unlink()


def test_an_archive_that_is_not_whole_is_refused_before_anything_is_written(
    engine: SparkEngine, written: WrittenStore, tmp_path: Path
) -> None:
    whole, new = tmp_path / "archive", SqliteAddress(str(tmp_path / "new"))
    export(engine, written.address, whole)
    files = sorted(path.relative_to(whole) for path in whole.rglob("*.parquet"))
    damages: list[tuple[Path, Callable[[Path], None], str]] = [
        (files[0], cut, "bytes instead of"),
        (files[1], flip, "was changed"),
        (files[2], remove, "is missing"),
        (Path("manifest.json"), flip, "the manifest is damaged or was changed"),
        (Path("manifest.json"), remove, "make sure that the export is finished"),
    ]
    for number, (file, damage, reason) in enumerate(damages):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(whole, copy)
        damage(copy / file)
        with pytest.raises(ArchiveError, match=reason) as failure:
            take_in(engine, copy, new)
        assert str(file) in str(failure.value)
        assert_nothing_at(new)
    take_in(engine, whole, new)


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["sqlite", "postgres"])
def test_an_import_that_fails_leaves_nothing_and_can_be_repeated(
    engine: SparkEngine,
    written: WrittenStore,
    place: Callable[[str, str], StoreAddress],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    back_end: str,
) -> None:
    new = place(back_end, "new")
    export(engine, written.address, tmp_path / "archive")

    load_file = archive.load_file

    def interrupt(job: archive.LoadJob, file: ArchiveFile, count: Callable[[int], None]) -> None:
        load_file(job, file, count)
        raise KeyboardInterrupt

    for died in (False, True):
        with monkeypatch.context() as patched:
            patched.setattr(archive, "load_file", interrupt)
            if died:  # whoever is killed cleans nothing up
                patched.setattr(SqliteLoad, "discard", lambda _: None)
                patched.setattr(PostgresLoad, "discard", lambda _: None)
            with pytest.raises(KeyboardInterrupt):
                take_in(engine, tmp_path / "archive", new)
        assert_nothing_at(new)
    take_in(engine, tmp_path / "archive", new)
    assert everything(new)["totals"] == everything(written.address)["totals"]


@pytest.mark.long
@pytest.mark.parametrize("back_end", [pytest.param("sqlite", marks=pytest.mark.long), "postgres"])
def test_a_store_takes_the_place_of_an_empty_one_only(
    engine: SparkEngine,
    written: WrittenStore,
    place: Callable[[str, str], StoreAddress],
    tmp_path: Path,
    back_end: str,
) -> None:
    export(engine, written.address, tmp_path / "archive")
    with pytest.raises(StoreNotEmptyError, match="there is a store already"):
        take_in(engine, tmp_path / "archive", written.address)
    new = place(back_end, "new")
    open_backend(new).open_reader().close()  # as the endpoint makes it when it is started first
    if isinstance(new, SqliteAddress):
        with (
            closing(open_backend(new).open_reader()),
            pytest.raises(StoreNotEmptyError, match="another process has the empty store open"),
        ):
            take_in(engine, tmp_path / "archive", new)
    take_in(engine, tmp_path / "archive", new)
    with pytest.raises(StoreNotEmptyError):
        take_in(engine, tmp_path / "archive", new)


def test_an_export_goes_to_a_new_directory_only(engine: SparkEngine, written: WrittenStore, tmp_path: Path) -> None:
    reports: list[BulkProgress] = []
    export_store(engine, written.address, tmp_path / "archive", reports.append)
    assert reports[0].rows == 0
    assert reports[-1].rows == reports[-1].rows_expected > 6000
    assert reports[-1].tasks == reports[-1].tasks_expected > 5
    assert sorted(path.name for path in (tmp_path / "archive").iterdir() if path.name.startswith(".")) == []
    with pytest.raises(ArchiveError, match="is not empty"):
        export(engine, written.address, tmp_path / "archive")


@pytest.mark.long
def test_an_archive_can_be_read_by_spark_itself(
    engine: SparkEngine, spark: Spark, written: WrittenStore, tmp_path: Path
) -> None:
    export(engine, written.address, tmp_path / "archive")
    rows = spark.session().read.parquet(str(tmp_path / "archive" / "rows"))
    assert rows.count() == len(written.rows)


CONFIG = """\
replication: {{connections: [{{uri: "postgresql://app@127.0.0.1:1024/shop", sslmode: disable}}]}}
storage: {{type: sqlite, path: {path}}}
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_commands_move_a_store_and_name_the_next_step(written: WrittenStore, tmp_path: Path) -> None:
    written.close()
    for name in ("old", "new"):
        (tmp_path / f"{name}.yaml").write_text(CONFIG.format(path=f"./{name}"))
    done = headwater("store", "export", "moving", "--seal", "-c", "old.yaml", cwd=tmp_path, seconds=300)
    assert done.code == 0, done.err
    assert "3,000 rows, 4 buckets up to op" in done.out
    assert "the store is sealed" in done.out
    done = headwater("store", "import", "moving", "-c", "new.yaml", cwd=tmp_path, seconds=300)
    assert done.code == 0, done.err
    assert "3,000 rows, 4 buckets up to op" in done.out
    failed = headwater("store", "import", "moving", "-c", "new.yaml", cwd=tmp_path, seconds=300)
    assert failed.code == 1
    assert "there is a store already" in failed.err
    assert "Traceback" not in failed.err
    opened = headwater("store", "unseal", "-c", "old.yaml", cwd=tmp_path, seconds=300)
    assert "is open again; it was exported to" in opened.out
    assert everything(SqliteAddress(str(tmp_path / "new")))["totals"] == everything(written.address)["totals"]
