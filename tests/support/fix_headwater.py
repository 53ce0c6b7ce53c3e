"""A replicator in the test's own process. Its bulk work runs there too, or in tests/spark on one warm Spark."""

from __future__ import annotations

import functools
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import psycopg
import pytest

from headwater.bulk.contract import BulkProgress
from headwater.embedded.postgres import EmbeddedPostgres
from headwater.oplog.lsn import parse_lsn
from headwater.pipeline.jobs import BulkJobs
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from headwater.replication.intervals import PollIntervals
from headwater.replication.jobs.sampling import SamplingSettings
from headwater.replication.meters import Figures
from headwater.replication.replicator import Replicator
from headwater.replication.status import SourceStatus, find_status
from headwater.replication.versions import ConfigFile, Peers
from headwater.source.catalog.publications import load_publications
from headwater.source.connect import SourceSettings
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import RequestState
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import SyncPlan
from headwater_rules.results import SyncRequest
from tests.support.local_bulk import EVERYTHING_ON_SPARK, local_bulk
from tests.support.model_device import ModelBucket, chunks_of, contents, parse_ops
from tests.support.store_checker import problems
from tests.support.store_file import store_file, store_tables
from tests.support.waiting import DEADLINE, wait_until

if TYPE_CHECKING:  # plugins must not import each other: pytest rewrites each as it loads it
    from tests.support.fix_postgres import SourceDb

HASTY = PollIntervals(catalog=0.5, recheck=0.2, min_interval=0.02, health=5.0, work=0.1, retry=1.0)
"""Each look costs the source 10 ms of a processor."""
WATCHED = replace(HASTY, health=1.0)
"""Of a test that asks how the source stands."""
TRIGGERED = replace(HASTY, catalog=3600.0)
"""Of a replicator that hears of changes of tables by event triggers alone."""


_numbers = itertools.count(1)


@functools.lru_cache(maxsize=64)
def plan_of(yaml: str) -> SyncPlan:
    """The plan of a sync config."""
    return compile_config(yaml).plan


@dataclass
class Deployment:
    """A source database, a store and the replicator between them."""

    source: SourceDb
    directory: Path  # of the embedded store
    yaml: str
    bulk: BulkJobs
    snapshots: list[BulkProgress] = field(default_factory=list)
    keep_stopped: float = 600.0
    sampling: SamplingSettings = field(default_factory=lambda: SamplingSettings(enabled=False))
    storage: PostgresAddress | None = None
    on_apply_error: Literal["skip", "stop"] = "skip"
    publications: tuple[str, ...] = ("headwater",)
    slot_prefix: str = ""  # by the name of the database
    intervals: PollIntervals = field(default_factory=lambda: HASTY)
    heartbeat_seconds: int = 60
    user: str = "postgres"
    password: str = ""
    port: int = 0  # where the source is reached, if not at its own
    memory_bytes: int = 64 << 20
    silence_seconds: float = 60.0
    patience: float = DEADLINE  # in seconds, with the start and the end of the replicator
    take_slot: bool = False
    whole: bool = True  # to be checked in the end
    tag: str = "default"
    shard: str | None = None
    peers: Peers = field(default_factory=dict)  # none but itself, if not given
    figures: Figures = field(default_factory=Figures)
    clock: Callable[[], int] | None = None  # what rules see as now(), if not that of the source
    _stop: threading.Event = field(default_factory=threading.Event)
    _following: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _failure: BaseException | None = None
    _reader: StoreReader | None = None

    @property
    def settings(self) -> SourceSettings:
        return SourceSettings(
            host="127.0.0.1",
            port=self.port or self.source.server.port,
            database=self.source.name,
            user=self.user,
            password=self.password,
            sslmode="disable",
            slot_prefix=self.slot_prefix or f"hw_{self.source.name}_",
            on_apply_error=self.on_apply_error,
            publications=self.publications,
            heartbeat_seconds=self.heartbeat_seconds,
            memory_bytes=self.memory_bytes,
            silence_seconds=self.silence_seconds,
            tag=self.tag,
            shard=self.shard,
        )

    @property
    def name(self) -> str:
        """What the store calls the source."""
        return self.settings.name

    @property
    def address(self) -> StoreAddress:
        return self.storage or SqliteAddress(str(self.directory))

    def problems(self) -> list[str]:
        """What contradicts itself in the store. Asked of the embedded store only."""
        return problems(self.directory) if self.storage is None else []

    @property
    def reader(self) -> StoreReader:
        if self._reader is None:
            self._reader = open_store(self.address).open_reader()
        return self._reader

    def start(self, *, publish: bool = True, wait: bool = True) -> Deployment:
        """Start the replicator and wait until it follows the stream, which it can't without `publish`, if that is
        still to be done."""
        self._stop, self._failure = threading.Event(), None
        following = self._following = threading.Event()
        if publish and not load_publications(self.source.connection, ["headwater"]):
            self.source.execute("create publication headwater for all tables")
        self._thread = threading.Thread(target=self._run, args=(following,), daemon=True)
        self._thread.start()
        if publish and wait:
            self.wait_until_following()
        return self

    def wait_until_following(self) -> None:
        """Wait until the replicator that was started last follows the stream."""
        following = self._following
        wait_until(
            lambda: following.is_set() or self._failure is not None,
            "the replicator to follow the stream",
            self.patience,
        )
        self.raise_failure()

    def _run(self, following: threading.Event) -> None:
        try:
            with self.store() as store:
                self._replicate(store, following)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self._failure = error

    def _replicate(self, store: StoreWriter, following: threading.Event) -> None:
        Replicator(
            source=self.settings,
            store=store,
            file=ConfigFile(self.yaml, [self.name]),
            peers=self.peers or {self.name: self.tag},
            bulk=self.bulk,
            owner=f"test:{next(_numbers)}",
            progress=self.snapshots.append,
            following=following.set,
            keep_stopped=self.keep_stopped,
            sampling=self.sampling,
            intervals=self.intervals,
            take_slot=self.take_slot,
            figures=self.figures,
            clock=self.clock,
        ).run(self._stop)

    @property
    def running(self) -> bool:
        """Whether the replicator was started and not stopped."""
        return self._thread is not None

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self.patience)
            assert not self._thread.is_alive()
            self._thread = None

    def stop_and_let_go(self) -> None:
        """Stop, and wait until Postgres has noticed that nobody reads the slots."""
        self.stop()
        read = "select count(*) from pg_replication_slots where database = current_database() and active"
        wait_until(lambda: self.source.connection.execute(read).fetchall() == [(0,)], "the slots to be free")

    def close(self) -> None:
        self.stop()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def close_whole(self) -> None:
        """Close it, and hold the store to have nothing in it that contradicts itself."""
        self.close()
        if self.whole and self.directory.exists():
            assert self.problems() == []

    def caught_up(self, own: psycopg.Connection | None = None) -> int:
        """Wait until clients can see every commit made so far; returns the checkpoint's op id. Other threads than the
        test's bring a connection of their own."""
        conn = own or self.source.connection
        ((position,),) = conn.execute("select pg_current_wal_insert_lsn()::text").fetchall()
        conn.execute("select pg_logical_emit_message(false, 'headwater', 'ping')")
        reached_at = parse_lsn(position)

        def reached() -> bool:
            self.raise_failure()
            checkpoint = self.reader.newest()
            return checkpoint is not None and checkpoint.checkpoint.lsns.get(self.name, 0) >= reached_at

        wait_until(reached, "the store to reach the source")
        checkpoint = self.reader.newest()
        assert checkpoint is not None
        return checkpoint.checkpoint.op_id

    def buckets(self, user: str, **claims: object) -> dict[str, ModelBucket]:
        """A new device's buckets at the newest checkpoint, checksums verified."""
        plan = plan_of(self.yaml)
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

    def health(self) -> SourceStatus:
        """How the replicator stands, by what it tells. Its `at` is None before it has told anything."""
        return find_status(self.name, self.reader.replicator_status(self.name), None, time.time())

    def store(self) -> closing[StoreWriter]:
        """The store as a command has it."""
        return closing(open_store(self.address).open_writer())

    def redeploy(self, yaml: str, *, origin: Origin = Origin.COMMAND) -> ConfigVersion:
        """Deploy another sync config and wait until it is served."""
        self.yaml = yaml
        with self.store() as store:
            version = store.deploy(yaml, origin).id

            def served() -> bool:
                self.raise_failure()
                return next(v for v in store.versions() if v.id == version).state is not VersionState.PROCESSING

            wait_until(served, "the version to be served")
            return next(v for v in store.versions() if v.id == version)

    def ask(self, kind: str, **payload: object) -> dict[str, Any]:
        """Send the replicator a request and wait for its result."""
        with self.store() as store:
            number = store.submit(kind, self.name, json.dumps(payload))

            def ended() -> bool:
                self.raise_failure()
                request = store.request(number)
                return request is not None and request.state in {RequestState.DONE, RequestState.FAILED}

            wait_until(ended, f"the {kind} to end")
            request = store.request(number)
            assert request is not None
            result: dict[str, Any] = json.loads(request.result)
            return {"state": request.state.value, **result}

    def kinds(self) -> list[str]:
        """The kinds of the bulk jobs that were done."""
        return [record.kind for record in self.bulk_records()]

    def bulk_records(self) -> list[BulkRecord]:
        """The bulk jobs that the store tells of."""
        with self.store() as store:
            return store.bulk_records()

    def op_count(self) -> int:
        """How many ops the store has given to clients, all buckets together."""
        self.caught_up()
        return self.op_count_now()

    def op_count_now(self) -> int:
        """The same, without waiting for the replicator."""
        sealed = "select coalesce(sum(b.size), 0) from segments s join segment_blobs b on b.id = s.blob"
        tables = store_file(self.directory) if self.storage is None else store_tables(self.storage)
        with tables as db:
            ((count,),) = db.execute(f"select (select count(*) from ops) + ({sealed})").fetchall()
        return int(str(count))


Deploy = Callable[..., Deployment]

STORES = pytest.mark.parametrize(
    "on_postgres", [False, pytest.param(True, marks=pytest.mark.long)], ids=["embedded", "postgres"]
)
"""For tests of the whole service that are worth repeating on the other store, whose own tests are in tests/contract."""


def read_bucket(reader: StoreReader, bucket: str, upto: int, model: ModelBucket | None = None) -> ModelBucket:
    """Bring a device's bucket to a checkpoint."""
    model = model or ModelBucket()
    for chunk in chunks_of(reader, bucket, model.position, upto):
        for op in parse_ops(chunk.ops):
            model.apply(op)
    model.position = max(model.position, upto)
    return model


@pytest.fixture(scope="session")
def spark() -> Iterator[Spark]:
    """One Spark for the whole session: a start costs ten seconds."""
    spark = Spark(SparkSettings(conf={"spark.driver.memory": "700m"}, idle_minutes=0, queries=True))
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def spark_bulk(spark: Spark) -> BulkJobs:
    """Bulk work on it."""
    return BulkJobs(SparkEngine(spark))


@pytest.fixture
def bulk(request: pytest.FixtureRequest) -> BulkJobs:
    """Bulk work for a deployment."""
    if EVERYTHING_ON_SPARK:
        warm: BulkJobs = request.getfixturevalue("spark_bulk")
        return warm
    return local_bulk()


@pytest.fixture(scope="session")
def storage_dsn(postgres: EmbeddedPostgres) -> str:
    """A database for stores, apart from the sources."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("create database storage")
    return postgres.dsn("storage")


@pytest.fixture
def on_storage(storage_dsn: str) -> Iterator[Callable[[], PostgresAddress]]:
    """Gives out the one address of a test where a store in Postgres may be made. Fixtures name it as an argument, since
    one that is asked for by `getfixturevalue` ends first, and the schema would go under a running replicator."""
    with ExitStack() as stack:

        @functools.cache
        def address() -> PostgresAddress:
            schema = f"store_{next(_numbers)}"
            stack.callback(_drop_schema, storage_dsn, schema)
            return PostgresAddress(storage_dsn, schema, "the test's storage")

        yield address


def _drop_schema(dsn: str, schema: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"drop schema if exists {schema} cascade".encode())


@pytest.fixture
def postgres_storage(on_storage: Callable[[], PostgresAddress]) -> PostgresAddress:
    """Where a store in Postgres may be made; gone with the test."""
    return on_storage()


@pytest.fixture
def deploy(
    source_db: SourceDb, bulk: BulkJobs, tmp_path: Path, on_storage: Callable[[], PostgresAddress]
) -> Iterator[Callable[..., Deployment]]:
    """`deploy(yaml)` describes a deployment over the test's database; `start()` it when the tables are there. Its
    store is embedded, or in Postgres when the test or HEADWATER_TEST_STORAGE says so. After the test it has to be
    whole, unless `deployment.whole` says otherwise."""
    everywhere = os.environ.get("HEADWATER_TEST_STORAGE") == "postgres"
    with ExitStack() as stack:

        def make(
            yaml: str, directory: Path | None = None, *, on_postgres: bool = everywhere, **changes: Any
        ) -> Deployment:
            storage = on_storage() if on_postgres else None
            given = {"bulk": bulk, "storage": storage, **changes}
            deployment = Deployment(source_db, directory or tmp_path / "store", yaml, **given)
            stack.callback(deployment.close_whole)
            return deployment

        yield make


@pytest.fixture
def deploy_on(bulk: BulkJobs, tmp_path: Path) -> Iterator[Callable[..., Deployment]]:
    """`deploy_on(source, yaml)` describes a deployment over another database, whose connection ends with the test."""
    with ExitStack() as stack:

        def make(source: SourceDb, yaml: str, **changes: Any) -> Deployment:
            deployment = Deployment(source, tmp_path / "store", yaml, **{"bulk": bulk, **changes})
            stack.callback(lambda: source.connection.close())  # noqa: PLW0108 - the last one of several
            stack.callback(deployment.close_whole)
            return deployment

        yield make
