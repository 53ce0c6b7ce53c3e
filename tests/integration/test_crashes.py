"""A replicator or a store dies at any step: nothing is half there, nothing is lost, and devices converge."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import headwater
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.address import SqliteAddress, StoreAddress
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import ReplicationProgress, StoreError
from headwater.storage.contract.versions import VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater.storage.sqlite.writer import SqliteWriter
from tests.integration import small_bulk
from tests.integration.little_source import (
    SOURCE,
    expected_buckets,
    expected_lookups,
    rows_after,
    sides_of,
)
from tests.integration.store_life import FAVOURITES, LSN_EACH, MIGRATION_POINTS, write_address
from tests.integration.test_lake_command import LAKE_POINTS
from tests.integration.test_upload_crashes import UPLOAD_POINTS
from tests.support.dying import FLUSH_POINTS, REFRESH_POINTS
from tests.support.each_once import Writer, assert_each_once, snapshot_of_empty_table, write
from tests.support.fix_headwater import Deploy, Deployment, read_bucket
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.fix_stores import LASTING, NewAddress
from tests.support.model_device import ModelBucket, contents
from tests.support.processes import Running, wait_gone
from tests.support.store_checker import leftovers, problems
from tests.support.sync_configs import OWN_NOTES
from tests.support.waiting import wait_until

BULK_POINTS = ("stage.after_part", "publish.before_segments", "publish.before_commit", "publish.after_commit")


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    """A store that has read an empty table, with nobody at work on it."""
    return snapshot_of_empty_table(deploy(OWN_NOTES))


def replicator(launch: Launch, deployment: Deployment, failpoint: str = "") -> Running:
    return launch("replicate", config_of(deployment, free_port()), failpoint=failpoint)


def wait_visible(deployment: Deployment, ops: int, running: Running) -> None:
    wait_until(lambda: deployment.op_count_now() >= ops or not running.alive, f"{ops} ops in the store")
    assert running.alive, running.output


@pytest.mark.long
def test_kill_during_thousand_transactions(deployment: Deployment, launch: Launch) -> None:
    moments = random.Random(5)
    writer = Writer(deployment.source)
    writer.start()
    try:
        for _ in range(4):
            running = replicator(launch, deployment)
            running.wait_for("following the stream")
            seen = deployment.op_count_now()
            writer.allow(200)
            wait_visible(deployment, seen + moments.randrange(1, 120), running)
            running.kill()
            assert deployment.op_count_now() < 1000
            assert problems(deployment.directory) == []
        running = replicator(launch, deployment)
        writer.allow(200)
        wait_until(lambda: writer.written == 1000, "the last transaction")
    finally:
        writer.end()
    assert_each_once(deployment, 1000)
    assert running.alive


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=[] if point == "flush.before_commit" else [pytest.mark.long]) for point in FLUSH_POINTS],
    ids=FLUSH_POINTS,
)
def test_kill_inside_flush(deployment: Deployment, launch: Launch, point: str) -> None:
    write(deployment.source, range(50))
    running = replicator(launch, deployment, point)
    running.died_at(point)
    if point != "flush.after_commit":
        assert deployment.op_count_now() == 0, "a flush was seen before its commit"
    assert problems(deployment.directory) == []
    running, written = replicator(launch, deployment, f"{point}:4"), 50
    while running.alive:  # each round is at least one flush
        seen = deployment.op_count_now()
        write(deployment.source, range(written, written + 10))
        written += 10
        wait_moved(deployment, running, seen)
    running.died_at(point)
    assert problems(deployment.directory) == []
    replicator(launch, deployment)
    assert_each_once(deployment, written)


def wait_moved(deployment: Deployment, running: Running, seen: int) -> None:
    """Wait until the store has more ops than were seen, or the replicator is dead."""
    wait_until(lambda: deployment.op_count_now() > seen or not running.alive, "a flush")


@pytest.mark.long
def test_kill_during_large_transaction(deployment: Deployment, launch: Launch) -> None:
    deployment.source.execute(
        "insert into notes select 'n' || i, (array['a', 'b', 'c'])[i % 3 + 1], i from generate_series(0, 19999) i"
    )
    replicator(launch, deployment, "flush.before_commit").died_at("flush.before_commit")
    assert deployment.op_count_now() == 0
    assert problems(deployment.directory) == []
    replicator(launch, deployment)
    assert_each_once(deployment, 20000)


def test_full_disk_is_named(tmp_path: Path) -> None:
    small_bulk.run(tmp_path, "first")
    store = SqliteWriter(tmp_path)
    lease = store.acquire("default", "here:1", 30.0)
    (size,) = store._db.rows("pragma page_count")[0]
    store._db.script(f"pragma max_page_count = {size}")
    flush = store.begin(lease)
    (table, *_) = store.tables("default")
    flush.put_rows(table.id, [CurrentRow(str(i), 0, "x" * 4000, "", None) for i in range(1000)])
    with pytest.raises(StoreError, match=r"the disk is full.*free space on it"):
        flush.commit("default", ReplicationProgress(Lsn(1 << 40)))
    flush.rollback()
    store.close()
    assert problems(tmp_path) == []


# a bulk job dies


@pytest.mark.parametrize(
    "failpoint", [*BULK_POINTS, "stage.after_part:4"], ids=[*BULK_POINTS, "stage.after_part, the last"]
)
def test_kill_while_bulk_job_is_taken_over(launch_module: Launch, tmp_path: Path, failpoint: str) -> None:
    directory, point = tmp_path / "store", failpoint.partition(":")[0]
    small_bulk.run(directory, "first")
    reader = open_store(SqliteAddress(str(directory))).open_reader()
    device = follow(reader, {})
    dying = launch_module("tests.integration.small_bulk", str(directory), "second", failpoint=failpoint)
    dying.died_at(point)
    seen = "second" if point == "publish.after_commit" else "first"
    assert problems(directory) == []
    assert contents(follow(reader, {}).values()) == small_bulk.expected(seen)
    assert contents(follow(reader, device).values()) == small_bulk.expected(seen)
    assert lookups(reader) == {f'["{seen} {i}"]' for i in range(small_bulk.ROWS)}
    small_bulk.run(directory, "third")
    assert problems(directory) == []
    assert leftovers(directory) == {}
    assert contents(follow(reader, {}).values()) == small_bulk.expected("third")
    assert contents(follow(reader, device).values()) == small_bulk.expected("third")
    assert lookups(reader) == {f'["third {i}"]' for i in range(small_bulk.ROWS)}
    reader.close()


def follow(reader: StoreReader, device: dict[str, ModelBucket]) -> dict[str, ModelBucket]:
    """Bring a device to the newest checkpoint; its checksums are those that the store tells."""
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        upto, totals = snapshot.checkpoint.op_id, snapshot.totals(small_bulk.BUCKETS)
    for bucket in small_bulk.BUCKETS:
        device[bucket] = read_bucket(reader, bucket, OpId(upto), device.get(bucket))
        assert device[bucket].checksum == totals[bucket].checksum
    return device


def lookups(reader: StoreReader) -> set[str]:
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        return set(snapshot.lookups(['l["todos"]'])['l["todos"]'])


def filled(deployment: Deployment) -> Deployment:
    """A source with 2,000 rows that no store has read."""
    deployment.source.execute("create table notes (id text primary key, owner text not null, n int)")
    deployment.source.execute(
        "insert into notes select 'n' || i, (array['a', 'b', 'c'])[i % 3 + 1], i from generate_series(0, 1999) i"
    )
    deployment.source.execute("create publication headwater for table notes")
    return deployment


def die_in_the_snapshot(launch: Launch, deployment: Deployment, point: str) -> None:
    """A replicator with a Spark of its own dies at this point, and Spark with it."""
    running = replicator(launch, deployment, point)
    family = set()
    while running.alive:
        family |= running.family()
        time.sleep(0.5)
    running.died_at(point)
    assert family, "the snapshot was not read by Spark"
    wait_gone(family)
    assert problems(deployment.directory) == []
    published = deployment.reader.newest() is not None
    assert published == (point == "publish.after_commit")


def test_files_of_dead_bulk_job_are_removed(deployment: Deployment) -> None:
    stage = deployment.directory / "stage"
    stage.mkdir(exist_ok=True)
    (stage / "part-0.db").touch()
    deployment.start()
    assert leftovers(deployment.directory) == {}
    assert_each_once(deployment, 0)


@pytest.mark.long
@pytest.mark.parametrize("point", BULK_POINTS)
def test_kill_in_snapshot_and_restart(deploy: Deploy, launch: Launch, source_db: SourceDb, point: str) -> None:
    deployment = filled(deploy(OWN_NOTES))
    die_in_the_snapshot(launch, deployment, point)
    write(source_db, range(2000, 2010))
    running = replicator(launch, deployment)
    running.wait_for("following the stream")
    assert_each_once(deployment, 2010)
    assert leftovers(deployment.directory) == {}
    assert len(deployment.bulk_records()) == 1


def test_every_failpoint_is_tested() -> None:
    code = Path(headwater.__path__[0]).rglob("*.py")
    named = {name for file in code for name in re.findall(r'failpoint\("([^"]+)"\)', file.read_text(encoding="utf-8"))}
    uploads = {point.partition(":")[0] for point in UPLOAD_POINTS}
    assert named == {*FAVOURITES, *MIGRATION_POINTS, *LAKE_POINTS, *uploads, *REFRESH_POINTS}
    assert named >= {*FLUSH_POINTS, *BULK_POINTS}


@dataclass
class Witness:
    """Sees a store before and after its deaths: `device` stays the same all the time."""

    address: StoreAddress
    launch_module: Launch
    device: dict[str, ModelBucket] = field(default_factory=dict)
    reached: int = 0
    checkpoint: int = 0

    def dies(self, failpoint: str, favourite: str, seed: int) -> Running:
        """A process works on the store until it dies there."""
        arguments = write_address(self.address), str(seed), favourite
        running = self.launch_module("tests.integration.store_life", *arguments, failpoint=failpoint)
        running.died_at(failpoint.partition(":")[0])
        told = [line.split()[1] for line in running.output.splitlines() if line.startswith("reached ")]
        self.reached = max(self.reached, *map(int, told), 0)
        return running

    def check(self) -> None:
        """The store is whole, holds what was told to be there, and the device gets to it."""
        with closing(open_store(self.address).open_writer()) as store:
            assert problems(self.address) == []
            state = store.source_state(SOURCE)
            number = 0 if state is None else state.lsn // LSN_EACH
            assert number >= self.reached, "what was told to be in the store is gone"
            if state is not None:
                self._check_contents(store, number)

    def _check_contents(self, store: StoreWriter, number: int) -> None:
        (active,) = [each for each in store.versions() if each.state is VersionState.ACTIVE]
        rows = rows_after(number)
        served = expected_buckets(sides_of(active.yaml), rows)
        with closing(open_store(self.address).open_reader()) as reader:
            with reader.snapshot() as snapshot:
                assert snapshot is not None
                assert snapshot.config.yaml == active.yaml
                assert snapshot.checkpoint.op_id >= self.checkpoint, "the checkpoint went back"
                self.checkpoint = snapshot.checkpoint.op_id
                expected = expected_buckets({*store.complete_definitions("default"), *sides_of(active.yaml)}, rows)
                totals = snapshot.totals(list(expected))
                outputs = expected_lookups(sides_of(active.yaml), rows)
                found = snapshot.lookups(list(outputs))
            assert {key: set(given) for key, given in found.items()} == outputs
            self.device = {name: self.device.get(name, ModelBucket()) for name in served}
            for name in served:
                if totals[name].count == 0:  # forgotten since: a device finds its sum wrong and begins again
                    self.device[name] = ModelBucket()
                read_bucket(reader, name, self.checkpoint, self.device[name])
                assert self.device[name].checksum == totals[name].checksum, name
                assert shown(self.device[name]) == served[name]
            for name, content in expected.items():
                fresh = read_bucket(reader, name, self.checkpoint)
                assert fresh.checksum == totals[name].checksum, name
                assert shown(fresh) == content


def shown(bucket: ModelBucket) -> dict[tuple[str, str], str]:
    """Data by table and id; each stands once."""
    found = {(table, object_id): data for (table, object_id, _), (_, data, _) in bucket.rows.items()}
    assert len(found) == len(bucket.rows)
    return found


def live_and_die(witness: Witness, seed: int, points: list[str]) -> Counter[str]:
    """A store's life with a death at each of these points. Returns how often it died at each."""
    moments = random.Random(seed)
    died: Counter[str] = Counter()
    for number, point in enumerate(points):
        failpoint = f"{point}:{moments.randrange(1, 6)}"
        witness.dies(failpoint, FAVOURITES[point], seed * 1_000 + number)
        died[point] += 1
        witness.check()
    return died


@pytest.mark.parametrize("new_address", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
@pytest.mark.timeout(600)
def test_store_killed_once_at_every_failpoint(new_address: NewAddress, launch_module: Launch) -> None:
    points = [*FAVOURITES]
    random.Random(1).shuffle(points)
    died = live_and_die(Witness(new_address(), launch_module), 1, points)
    assert died == dict.fromkeys(FAVOURITES, 1)


@LASTING
def test_new_store_killed_before_it_is_made(new_address: NewAddress, launch_module: Launch) -> None:
    witness = Witness(new_address(), launch_module)
    for point in MIGRATION_POINTS:
        witness.dies(point, "flush", 1)
    witness.dies("publish.after_commit", "flush", 1)
    witness.check()


@LASTING
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2, 9))
def test_store_killed_over_and_over(new_address: NewAddress, launch_module: Launch, seed: int) -> None:
    points = [*FAVOURITES, *FAVOURITES]
    random.Random(seed).shuffle(points)
    died = live_and_die(Witness(new_address(), launch_module), seed, points)
    assert died == dict.fromkeys(FAVOURITES, 2)
