"""A replicator in the test's own process, with one warm Spark session for all tests."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import apsw
import pytest

from headwater.oplog.lsn import parse_lsn
from headwater.oplog.op import OpId
from headwater.pipeline.jobs import SparkBulk
from headwater.pipeline.session import Spark
from headwater.pipeline.settings import SparkSettings
from headwater.replication.replicator import Replicator
from headwater.source.catalog import load_publications
from headwater.source.connect import SourceSettings
from headwater.source.snapshot import BulkProgress
from headwater.storage.contract import BulkRecord, StoreReader
from headwater.storage.sqlite import SqliteStore
from headwater_rules.compile import compile_config
from headwater_rules.requests import resolve
from headwater_rules.results import SyncRequest
from tests.support.model_device import ModelBucket, contents, parse_ops

if TYPE_CHECKING:  # plugins must not import each other: pytest rewrites each as it loads it
    from tests.support.fix_postgres import SourceDb

DEADLINE = 60.0

_numbers = itertools.count(1)


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE) -> None:
    """Wait for a state of the world that no event announces."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.01)


@dataclass
class Deployment:
    """A source database, a store and the replicator between them."""

    source: SourceDb
    directory: Path
    yaml: str
    bulk: SparkBulk
    snapshots: list[BulkProgress] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _failure: BaseException | None = None
    _reader: StoreReader | None = None

    @property
    def settings(self) -> SourceSettings:
        return SourceSettings(
            host="127.0.0.1",
            port=self.source.server.port,
            database=self.source.name,
            user="postgres",
            sslmode="disable",
            slot_prefix=f"hw_{self.source.name}_",
        )

    @property
    def reader(self) -> StoreReader:
        if self._reader is None:
            self._reader = SqliteStore.open_reader(self.directory)
        return self._reader

    def start(self) -> Deployment:
        """Start the replicator and wait until it follows the stream."""
        self._stop = threading.Event()
        following = threading.Event()
        if not load_publications(self.source.connection, ["headwater"]):
            self.source.execute("create publication headwater for all tables")
        self._thread = threading.Thread(target=self._run, args=(following,), daemon=True)
        self._thread.start()
        wait_until(lambda: following.is_set() or self._failure is not None, "the replicator to follow the stream")
        self.raise_failure()
        return self

    def _run(self, following: threading.Event) -> None:
        store = SqliteStore(self.directory)
        try:
            Replicator(
                source=self.settings,
                store=store,
                plan=compile_config(self.yaml).plan,
                yaml=self.yaml,
                bulk=self.bulk,
                owner=f"test:{next(_numbers)}",
                progress=self.snapshots.append,
                following=following.set,
            ).run(self._stop)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self._failure = error
        finally:
            store.close()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(DEADLINE)
            assert not self._thread.is_alive()
            self._thread = None

    def close(self) -> None:
        self.stop()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def caught_up(self) -> int:
        """Wait until clients can see every commit made so far; returns the checkpoint's op id."""
        position = parse_lsn(self.source.fetch("select pg_current_wal_insert_lsn()::text")[0][0])
        self.source.execute("select pg_logical_emit_message(false, 'headwater', 'ping')")

        def reached() -> bool:
            self.raise_failure()
            checkpoint = self.reader.checkpoint()
            return checkpoint is not None and checkpoint[0].lsns["default"] >= position

        wait_until(reached, "the store to reach the source")
        checkpoint = self.reader.checkpoint()
        assert checkpoint is not None
        return checkpoint[0].op_id

    def buckets(self, user: str, **claims: object) -> dict[str, ModelBucket]:
        """A new device's buckets at the newest checkpoint, checksums verified."""
        plan = compile_config(self.yaml).plan
        with self.reader.snapshot() as snapshot:
            assert snapshot is not None
            resolution = resolve(plan, SyncRequest({"sub": user, **claims}), snapshot.lookups)
            names = [bucket.name for bucket in resolution.buckets]
            totals = snapshot.totals(names)
            upto = snapshot.checkpoint.op_id
        models = {name: read_bucket(self.reader, name, upto) for name in names}
        for name, model in models.items():
            assert model.checksum == totals[name].checksum, name
        return models

    def rows(self, user: str, **claims: object) -> dict[tuple[str, str], dict[str, object]]:
        """What a new device of this user shows, after everything committed so far."""
        self.caught_up()
        return contents(self.buckets(user, **claims).values())

    def bulk_records(self) -> list[BulkRecord]:
        """The bulk jobs that the store tells of."""
        store = SqliteStore(self.directory)
        try:
            return store.bulk_records()
        finally:
            store.close()

    def op_count(self) -> int:
        """How many ops the store has given to clients, all buckets together."""
        self.caught_up()
        return self.op_count_now()

    def op_count_now(self) -> int:
        """The same, without waiting for the replicator."""
        db = apsw.Connection(str(self.directory / "store.db"), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            hot = db.execute("select count(*) from ops").fetchall()[0][0]
            sealed = db.execute("select coalesce(sum(last_op - first_op + 1), 0) from segments").fetchall()[0][0]
            return int(str(hot)) + int(str(sealed))
        finally:
            db.close()


def read_bucket(reader: StoreReader, bucket: str, upto: int, model: ModelBucket | None = None) -> ModelBucket:
    """Bring a device's bucket to a checkpoint."""
    model = model or ModelBucket()
    after = OpId(model.position)
    while True:
        chunk = reader.chunk(bucket, after, OpId(upto))
        for op in parse_ops(chunk.ops):
            model.apply(op)
        after = chunk.next_after
        if not chunk.more:
            model.position = max(model.position, upto)
            return model


@pytest.fixture(scope="session")
def spark_bulk() -> Iterator[SparkBulk]:
    """One Spark for the whole session: a start costs ten seconds."""
    spark = Spark(SparkSettings(conf={"spark.driver.memory": "700m"}))
    yield SparkBulk(spark)
    spark.stop()


@pytest.fixture
def deploy(source_db: SourceDb, spark_bulk: SparkBulk, tmp_path: Path) -> Iterator[Callable[[str], Deployment]]:
    """`deploy(yaml)` describes a deployment over the test's database; `start()` it when the tables are there."""
    with ExitStack() as stack:

        def make(yaml: str, directory: Path | None = None) -> Deployment:
            deployment = Deployment(source_db, directory or tmp_path / "store", yaml, spark_bulk)
            stack.callback(deployment.close)
            return deployment

        yield make
