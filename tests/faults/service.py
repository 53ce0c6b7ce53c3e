"""A service as processes, its source behind a network, and its store on a small disk: what faults are injected into."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import psutil
import psycopg

from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries
from tests.support.command import Outcome, command, headwater
from tests.support.fix_postgres import FAST
from tests.support.fix_service import client_auth, connection_to, free_port, token_for
from tests.support.network import Network
from tests.support.processes import start
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

ROLE, PASSWORD = "follower", "right"
OPERATOR = "an operator's secret"

SYNC = auto_streams(all=["SELECT * FROM notes", "SELECT * FROM staff.people"])

SOURCE = f"""
create schema staff;
create table notes (id text primary key, body text);
create table staff.people (id text primary key, name text);
create table unseen (id int primary key, body text);
insert into notes select n::text, 'x' from generate_series(1, 50) n;
create role {ROLE} login replication password '{PASSWORD}';
grant usage on schema staff to {ROLE};
grant select on all tables in schema public, staff to {ROLE};
alter table notes enable row level security;
create policy everybody on notes using (true) with check (true);
alter role {ROLE} bypassrls;
create publication headwater for table notes, staff.people;
"""

SETTINGS = {
    **FAST,
    "max_prepared_transactions": "4",
    "max_wal_senders": "8",
    "max_replication_slots": "8",
    "max_wal_size": "4GB",
    "max_slot_wal_keep_size": "512MB",
}

_HBA = """\
local all all trust
host all postgres 127.0.0.1/32 trust
host all all 127.0.0.1/32 scram-sha-256
"""


_DISK = "1500m"


@dataclass
class FaultyService:
    """A context manager. `config` is the service config, which is written when the service is started."""

    folder: Path
    binaries: PostgresBinaries
    config: dict[str, Any] = field(default_factory=dict)
    sync: str = SYNC
    _stack: ExitStack = field(default_factory=ExitStack)
    _service: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.server = stack.enter_context(EmbeddedPostgres(self.folder / "source", self.binaries, SETTINGS))
            self.sql(SOURCE)
            self.hba(_HBA)
            self.network = stack.enter_context(Network(self.server.port))
            self.port, self.metrics_port = free_port(), free_port()
            self.store = self._disk(stack)
            self.config = self._config()
            self.write()
            prepared = self.run("source prepare", "--upload", "--admin-uri", self.uri)
            assert prepared.code == 0, prepared
            stack.callback(self.stop)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def _disk(self, stack: ExitStack) -> Path:
        """The store's directory, on a disk of its own where one may be mounted."""
        path = self.folder / "disk"
        path.mkdir()
        mounting = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(path)]
        self.mounted = subprocess.run(mounting, capture_output=True, check=False).returncode == 0
        if self.mounted:
            stack.callback(subprocess.run, ["umount", "-l", str(path)], check=True)
        return path / "store"

    def shrink_disk(self) -> None:
        """Leave no room on the store's disk."""
        assert self.mounted, "the store has no disk of its own, which only root can mount"
        disk = os.statvfs(self.store.parent)
        self._resize(str((disk.f_blocks - disk.f_bfree) * disk.f_frsize + (1 << 18)))  # the service writes meanwhile
        with contextlib.suppress(OSError), (self.store.parent / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(512))

    def restore_disk(self) -> None:
        """Give it the room that it had."""
        self._resize(_DISK)
        (self.store.parent / "filler").unlink()

    def _resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.store.parent)], check=True)

    def _config(self) -> dict[str, Any]:
        return {
            "replication": {"connections": [connection_to(self.network.port, user=ROLE, password=PASSWORD)]},
            "storage": {"type": "sqlite", "path": str(self.store)},
            "sync_config": {"path": "sync.yaml"},
            "host": "127.0.0.1",
            "port": self.port,
            "api": {"workers": 1, "tokens": [OPERATOR]},
            "client_auth": client_auth(),
            "telemetry": {"prometheus_port": self.metrics_port},
            "upload": {"role": "app_user", "tables": {"notes": {}}},
            "spark": {"conf": {"spark.driver.memory": "700m"}},
        }

    # the source

    @property
    def dsn(self) -> str:
        return self.server.dsn()

    @property
    def uri(self) -> str:
        """Of a superuser, as commands take it."""
        return f"postgresql://postgres@127.0.0.1:{self.server.port}/postgres?sslmode=disable"

    def sql(self, text: str) -> None:
        """As a superuser."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            conn.execute(text)

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            return conn.execute(query).fetchall()

    def hba(self, text: str) -> None:
        """Who may log in how."""
        ((path,),) = self.fetch("show hba_file")
        Path(path).write_text(text, encoding="utf-8")
        self.sql("select pg_reload_conf()")

    def refuse(self, line: str) -> None:
        """The same, with a line before all others."""
        self.hba(f"{line}\n{_HBA}")

    def disconnect(self) -> None:
        """End what the role has open: most rights are looked at when somebody comes."""
        self.sql(f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = '{ROLE}'")

    @contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """A setting of the server that counts at once."""
        self.sql(f"alter system set {name} = '{value}'")
        self.sql("select pg_reload_conf()")
        try:
            yield
        finally:
            self.sql(f"alter system reset {name}")
            self.sql("select pg_reload_conf()")

    # the service

    @property
    def log(self) -> Path:
        return self.folder / "service.log"

    @property
    def config_file(self) -> Path:
        return self.folder / "headwater.json"

    def write(self) -> None:
        """Write the files of the config."""
        self.config_file.write_text(json.dumps(self.config), encoding="utf-8")
        (self.folder / "sync.yaml").write_text(self.sync, encoding="utf-8")

    def start(self, *options: str) -> None:
        """Start the service, and wait until it says something."""
        self.write()
        before = self.log.stat().st_size if self.log.exists() else 0
        self._service = start(command("serve", "-c", self.config_file, *options), self.log).process
        wait_until(lambda: self.log.stat().st_size > before, "the service to say something")

    def stop(self) -> None:
        """End it, if it runs."""
        if self._service is None:
            return
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._service.terminate()
        try:
            self._service.wait(30)
        except subprocess.TimeoutExpired:
            for process in self.family():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            self._service.kill()
            self._service.wait()
        self._service = None

    def kill(self) -> None:
        """End it with all its processes, as a machine does that has no memory left."""
        assert self._service is not None
        family = self.family()
        self._service.kill()
        self._service.wait()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, 30)
        self._service = None

    def start_second(self) -> subprocess.Popen[bytes]:
        """A replicator of another service, on the same store and with the same log."""
        return start(command("replicate", "-c", self.config_file, "--unified"), self.log).process

    def family(self) -> list[psutil.Process]:
        """The processes below the service's."""
        if self._service is None or self._service.poll() is not None:
            return []
        return psutil.Process(self._service.pid).children(recursive=True)

    def replicator(self) -> psutil.Process:
        """The process of the replicator."""
        return next(process for process in self.family() if "replicate" in process.cmdline())

    def signal(self, number: signal.Signals) -> None:
        """To the replicator."""
        self.replicator().send_signal(number)

    # what it says

    def run(self, command_line: str, *options: str) -> Outcome:
        """A command with the config, as a process of its own."""
        return headwater(*command_line.split(), "-c", self.config_file, *options)

    def is_well(self) -> bool:
        """Whether rows flow, and nothing is found."""
        if self._service is None or self._service.poll() is not None:
            return False
        outcome = self.run("source status")
        return outcome.code == 0 and "state     streaming" in outcome.out and self._ready()

    def make_well(self, seconds: float) -> None:
        """Wait until it is well, and start it anew if it is not."""
        for _ in range(2):
            if self._service is None or self._service.poll() is not None:
                self.start()
            with contextlib.suppress(AssertionError):
                wait_until(self.is_well, "the service to be well", seconds, pause=0.2)
                return
            self.stop()
        raise AssertionError(f"the service did not become well:\n{self.run('source status')}\n{self.tail()}")

    def tail(self, lines: int = 30) -> str:
        """The end of the log."""
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/probes/readiness", timeout=10).is_success
        except httpx.HTTPError:
            return False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def upload(self, body: Mapping[str, object]) -> None:
        """Sent by a device of user `u1`, if the endpoint answers."""
        headers = {"Authorization": f"Bearer {token_for('u1')}"}
        with contextlib.suppress(httpx.HTTPError):
            httpx.post(f"{self.url}/upload", json=body, headers=headers, timeout=10)
