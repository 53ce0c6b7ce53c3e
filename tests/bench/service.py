"""What benchmarks run on: a real Postgres, the real `headwater` processes, and a meter of what they use."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

from headwater.embedded.postgres import EmbeddedPostgres, find_binaries
from headwater.oplog.lsn import parse_lsn
from headwater.source.connect import SourceSettings
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import StoredTable
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from tests.support.command import command
from tests.support.fix_service import client_auth, connection_to, free_port, token_for
from tests.support.processes import Running, start
from tests.support.waiting import wait_until

STORE = "HEADWATER_BENCH_STORE"
"""The variable that names the store that is measured: sqlite (the default), or postgres, in a database of its own."""


@dataclass(slots=True)
class Usage:
    """CPU seconds and peak memory (bytes, of all processes together) of a tree of processes over some time."""

    seconds: float = 0.0
    cpu: float = 0.0
    peak: int = 0


class Meter:
    """Samples a process and its descendants."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[int, float] = {}
        self._base: dict[int, float] = {}
        self._peak = 0
        self._done = threading.Event()

    def _sample(self) -> None:
        resident = 0
        for process in [self._root, *self._root.children(recursive=True)]:
            try:
                times, memory = process.cpu_times(), process.memory_info()
            except psutil.Error:
                continue
            self._cpu[process.pid] = times.user + times.system
            resident += memory.rss
        self._peak = max(self._peak, resident)

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            self._sample()

    @contextmanager
    def measure(self) -> Iterator[Usage]:
        """What is used until the end of the block."""
        usage = Usage()
        self._sample()
        self._base = dict(self._cpu)
        self._done.clear()
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        started = time.perf_counter()
        yield usage
        usage.seconds = time.perf_counter() - started
        self._done.set()
        thread.join()
        self._sample()
        usage.cpu = sum(self._cpu.values()) - sum(self._base.values())
        usage.peak = self._peak


def resident(pid: int) -> int:
    """The bytes of memory that a process has now."""
    memory: int = psutil.Process(pid).memory_info().rss
    return memory


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A process that serves devices."""

    port: int
    pid: int


@dataclass
class BenchService:
    """A Postgres with a database `bench`, and at most one running Headwater over it."""

    postgres: EmbeddedPostgres
    directory: Path
    running: Running | None = None
    beside: list[Running] = field(default_factory=list)
    port: int = 0
    _readers: list[StoreReader] = field(default_factory=list)
    _config: dict[str, object] = field(default_factory=dict)

    @property
    def pid(self) -> int:
        """Of the process that `serve` has started."""
        assert self.running is not None
        return self.running.process.pid

    @property
    def address(self) -> StoreAddress:
        if _in_postgres():
            return PostgresAddress(self.postgres.dsn("store"))
        return SqliteAddress(str(self.directory / "store"))

    def _storage(self) -> dict[str, object]:
        """The store, for a service config."""
        if _in_postgres():
            return connection_to(self.postgres.port, "store")
        return {"type": "sqlite", "path": str(self.directory / "store")}

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.postgres.dsn("bench"), autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement.encode())

    def copy_out(self, table: str) -> None:
        """Read a table whole, into nothing."""
        query = f"copy {table} to stdout".encode()
        with psycopg.connect(self.postgres.dsn("bench")) as conn, conn.cursor() as cursor, cursor.copy(query) as copy:
            for _ in copy:
                pass

    def fetch(self, statement: str) -> str:
        with psycopg.connect(self.postgres.dsn("bench"), autocommit=True) as conn:
            return str(conn.execute(statement.encode()).fetchall()[0][0])

    def serve(self, streams: str, *, apart: Iterable[str] = (), **settings: object) -> None:
        """Start `headwater serve`; `settings` come on top of the service config. Sources that are named `apart` have a
        process each, and so has the endpoint."""
        self.port = free_port()
        sync = self.directory / "sync.yaml"
        sync.write_text(streams, encoding="utf-8")
        config: dict[str, object] = {
            "replication": {"connections": [connection_to(self.postgres.port, "bench")]},
            "storage": self._storage(),
            "port": self.port,
            "sync_config": {"path": str(sync)},
            "client_auth": client_auth(),
            **settings,
        }
        self._config = config
        names = list(apart)
        self.running = self._start("api" if names else "serve", config)
        self.beside += [self._start("replicate", config, "--source", name) for name in names]

    def serve_ready(self, streams: str, *statements: str) -> None:
        """Run statements, start `headwater serve`, and wait until it has a checkpoint."""
        self.execute(*statements)
        self.serve(streams)
        self.wait_ready()

    @contextmanager
    def endpoint(self, **settings: object) -> Iterator[Endpoint]:
        """One more process that serves devices, with settings of its own, beside what `serve` has started."""
        port = free_port()
        running = self._start("api", {**self._config, "port": port, **settings})
        try:
            running.wait_ready(port, "/probes/readiness")
            yield Endpoint(port, running.process.pid)
        finally:
            running.ask_to_end()
            running.wait()

    def _start(self, name: str, config: dict[str, object], *arguments: str) -> Running:
        path = self.directory / f"{name}.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return start(command(name, "--config", path, *arguments), self.directory / "headwater.log")

    def wait_ready(self, seconds: float = 600.0) -> None:
        self._wait(lambda: self.reader().newest() is not None, "a checkpoint", seconds, pause=0.02)

    def reader(self) -> StoreReader:
        if not self._readers:
            self._readers.append(open_store(self.address).open_reader())
        return self._readers[0]

    def caught_up(self, seconds: float = 600.0) -> None:
        """Wait until the store has every commit made so far."""
        position = parse_lsn(self.fetch("select pg_current_wal_insert_lsn()::text"))
        self.fetch("select pg_logical_emit_message(false, 'headwater', 'ping')::text")

        def reached() -> bool:
            newest = self.reader().newest()
            return newest is not None and newest.checkpoint.lsns.get("default", 0) >= position

        self._wait(reached, "the store to reach the source", seconds, pause=0.002)

    def _wait(self, condition: Callable[[], bool], what: str, seconds: float, pause: float) -> None:
        """Look again after each pause, which does not grow: it is a part of what is measured."""
        running = self.running
        assert running is not None

        def holds() -> bool:
            assert running.alive, f"headwater ended:\n{running.output}"
            return condition()

        wait_until(holds, what, seconds, pause, longest=pause)

    def bulk_record(self) -> BulkRecord:
        return self.bulk_records()[-1]

    def bulk_records(self) -> list[BulkRecord]:
        with self.store() as store:
            return store.bulk_records()

    @property
    def source(self) -> SourceSettings:
        """How the source is reached."""
        return SourceSettings("127.0.0.1", "bench", "postgres", port=self.postgres.port, sslmode="disable")

    def shapes(self) -> dict[int, str]:
        """The shape of each table that the store has, by oid."""
        return {table.relation.oid: table.fingerprint for table in self._tables()}

    def marked(self) -> bool:
        """Whether any table is being compared with the source, or soon is."""
        return any(table.resync for table in self._tables())

    def _tables(self) -> list[StoredTable]:
        with self.store() as store:
            return store.tables("default")

    def store(self) -> closing[StoreWriter]:
        """The store as a command has it."""
        return closing(open_store(self.address).open_writer())

    def stream(self, user: str, encoding: str = "identity", port: int | None = None) -> socket.socket:
        """An open sync stream, as a socket to read the response from (chunked transfer encoding included)."""
        if port is None:
            port = self.port
            assert self.running is not None
            self.running.wait_ready(port, "/probes/readiness")
        body = json.dumps({"raw_data": True, "include_checksum": True, "client_id": user}).encode()
        connection = socket.create_connection(("127.0.0.1", port), timeout=120)
        head = (
            "POST /sync/stream HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
            f"Accept-Encoding: {encoding}\r\nAuthorization: Token {token_for(user)}\r\nContent-Length: {len(body)}\r\n"
        )
        connection.sendall(head.encode() + b"\r\n" + body)
        return connection

    def stop(self) -> None:
        for reader in self._readers:
            reader.close()
        self._readers.clear()
        for running in [*self.beside, *([self.running] if self.running is not None else [])]:
            running.ask_to_end()
            running.wait()
        self.running = None
        self.beside.clear()


@contextmanager
def bench_service(**settings: str) -> Iterator[BenchService]:
    """A service with a Postgres of its own, gone afterwards."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-bench-")))
        folder.chmod(0o755)
        defaults = {
            "wal_level": "logical",
            "max_replication_slots": "10",
            "max_wal_senders": "10",
            "max_wal_size": "8GB",
            "shared_buffers": "512MB",
        }
        postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres", find_binaries(), {**defaults, **settings}))
        with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
            admin.execute("create database bench")
            admin.execute("create database store")
        built = BenchService(postgres, folder)
        stack.callback(built.stop)
        yield built


def _in_postgres() -> bool:
    return os.environ.get(STORE) == "postgres"


def cores() -> int:
    return os.cpu_count() or 1
