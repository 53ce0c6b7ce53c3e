"""The processes of the scaled set-up, each of which can be killed and started again: two Postgres, a Spark cluster,
replicators and endpoints, as on several machines but for the network."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil
import psycopg
from psycopg import sql

from headwater.embedded.java import java_home
from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries, StopMode
from headwater.storage.address import PostgresAddress
from tests.support.command import command
from tests.support.fix_service import client_auth, connection_to, free_port
from tests.support.processes import Running, start, wait_gone
from tests.support.waiting import wait_until

WORKERS: Final = ("worker-1", "worker-2")
REPLICATORS: Final = ("replicator-1", "replicator-2")
ENDPOINTS: Final = ("endpoint-1", "endpoint-2")
PATIENCE: Final = 900.0
"""Seconds until something has started, on a machine that has much else to do."""

_MASTER_CONF: Final = """\
spark.master.rest.enabled false
spark.deploy.recoveryMode FILESYSTEM
spark.deploy.recoveryDirectory {folder}
"""


@dataclass
class Machines:
    """A context manager; everything ends with it. `apart` gives each replicator a host name of its own, so that it
    can't see whether the other's process is alive, as on another machine: a Linux that allows that is needed."""

    folder: Path
    binaries: PostgresBinaries | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    apart: bool = False
    ports: dict[str, int] = field(init=False)
    sync: str = ""
    _running: dict[str, Running] = field(default_factory=dict)
    _logs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ports = {name: free_port() for name in ("master", "master's page", *ENDPOINTS, *REPLICATORS)}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._source = stack.enter_context(
                EmbeddedPostgres(self.folder / "source", self.binaries, {"max_wal_size": "4GB", **self.settings})
            )
            self._store = stack.enter_context(EmbeddedPostgres(self.folder / "store", self.binaries, self.settings))
            stack.callback(self._end_all)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    # where things are

    @property
    def source(self) -> str:
        """Conninfo of the source."""
        return self._source.dsn()

    @property
    def address(self) -> PostgresAddress:
        """Where the store is."""
        return PostgresAddress(self._store.dsn())

    @property
    def config(self) -> Path:
        """The service config, as commands are given it."""
        return self.folder / "headwater.json"

    @property
    def endpoints(self) -> list[str]:
        """Where devices connect to."""
        return [f"http://127.0.0.1:{self.ports[name]}" for name in ENDPOINTS]

    @property
    def master(self) -> str:
        """The address of Spark's master."""
        return f"spark://127.0.0.1:{self.ports['master']}"

    def running(self, name: str) -> Running:
        """The process of that name, as it was started last."""
        return self._running[name]

    # parts

    def start_spark(self) -> None:
        """The master, then its workers."""
        self.start_master()
        for worker in WORKERS:
            self.start_worker(worker)

    def start_master(self, *, forgetful: bool = False) -> None:
        """Unless it is forgetful, it knows its workers and applications of before."""
        if forgetful:
            shutil.rmtree(self._made("master"))
        properties = self.folder / "master.conf"
        properties.write_text(_MASTER_CONF.format(folder=self._made("master")), encoding="utf-8")
        options = ["--host", "127.0.0.1", "--port", str(self.ports["master"])]
        options += ["--webui-port", str(self.ports["master's page"]), "--properties-file", str(properties)]
        master = self._spark("master", "org.apache.spark.deploy.master.Master", options)
        wait_until(
            lambda: any(text in master.output for text in ("New state: ALIVE", "Recovery complete")),
            "the Spark master",
            PATIENCE,
        )

    def start_worker(self, name: str) -> None:
        """One of one core, with its own folder for executors."""
        options = ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g"]
        options += ["--work-dir", str(self._made(name)), self.master]
        worker = self._spark(name, "org.apache.spark.deploy.worker.Worker", options)
        wait_until(lambda: "Successfully registered with master" in worker.output, name, PATIENCE)

    def start_replicator(self, name: str) -> None:
        """Starts it, and waits for nothing."""
        as_machine = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name] if self.apart else []
        self._start(name, [*as_machine, *command("replicate", "--config", self._config_of(name))])

    def start_endpoint(self, name: str) -> None:
        """Starts it, and waits until it answers."""
        started = self._start(name, command("api", "--config", self._config_of(name)))
        started.wait_ready(self.ports[name], seconds=PATIENCE)

    def kill(self, name: str) -> float:
        """End a process and all below it as by `kill -9`, as when its machine loses power. Returns when the process was
        dead, on the monotonic clock."""
        running = self._running[name]
        family = running.family()
        running.kill()
        dead = time.monotonic()
        for each in family:
            try:
                each.kill()
            except psutil.NoSuchProcess:
                continue
        wait_gone(family)
        return dead

    def crash_store(self) -> float:
        """End the store's Postgres as in a crash, and start it again. Returns when it was dead, on the monotonic
        clock."""
        self._store.stop(StopMode.IMMEDIATE)
        dead = time.monotonic()
        self._store.start()
        return dead

    def holder(self) -> str | None:
        """The replicator that has the lease, if one has."""
        leases = sql.SQL("select owner from {}.leases where name = 'default' and expires_at > now()")
        with psycopg.connect(self.address.conninfo) as connection:
            rows = connection.execute(leases.format(sql.Identifier(self.address.schema))).fetchall()
        pids = {int(owner.rpartition(":")[2]) for (owner,) in rows}
        return next((name for name in REPLICATORS if self._running[name].process.pid in pids), None)

    def _spark(self, name: str, program: str, options: Sequence[str]) -> Running:
        home = self.spark_home
        return self._start(
            name,
            [str(home / "bin" / "spark-class"), program, *options],
            JAVA_HOME=str(java_home()),
            SPARK_HOME=str(home),
            SPARK_LOCAL_IP="127.0.0.1",
            SPARK_LOCAL_DIRS=str(self._made(f"{name}-scratch")),
        )

    @property
    def spark_home(self) -> Path:
        """Where pyspark has its programs."""
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parent

    def _start(self, name: str, arguments: Sequence[str], **variables: str) -> Running:
        log = self.folder / f"{next(self._logs):02}-{name}.log"
        self._running[name] = start(arguments, log, cwd=self._made(name), variables=variables)
        return self._running[name]

    def _end_all(self) -> None:
        for running in reversed(self._running.values()):
            if running.alive:
                running.ask_to_end()
        for running in self._running.values():
            try:
                running.wait()
            except subprocess.TimeoutExpired:
                running.kill()

    def _made(self, name: str) -> Path:
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir(exist_ok=True)
        return folder

    # config

    def write_config(self, sync: str) -> None:
        """One config for all, as `docker/scaled/headwater.yaml`; but here all ports are of one machine."""
        self.sync = sync
        self.config.write_text(json.dumps(self._settings(free_port())), encoding="utf-8")

    def _config_of(self, name: str) -> Path:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(self._settings(self.ports[name])), encoding="utf-8")
        return path

    def _settings(self, port: int) -> dict[str, object]:
        return {
            "replication": {"connections": [connection_to(self._source.port)]},
            "storage": connection_to(self._store.port),
            "spark": {"master": self.master, "conf": {"spark.executor.memory": "600m", "spark.driver.memory": "600m"}},
            "client_auth": client_auth(),
            "port": port,
            "sync_config": {"content": self.sync},
        }

    def execute(self, *statements: str) -> None:
        """Run statements in the source, each of which commits by itself."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())


def can_be_apart() -> bool:
    """Whether processes here can be given a host name of their own."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "--uts", "hostname", "elsewhere"], capture_output=True, check=False)
    return tried.returncode == 0 and socket.gethostname() != "elsewhere" and os.name == "posix"
