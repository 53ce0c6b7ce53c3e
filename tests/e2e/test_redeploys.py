"""A connected stock SDK through redeploys of the sync config: what did not change is not downloaded again."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.command import headwater
from tests.support.fix_devices import DEADLINE, Device, DeviceFactory
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

Serve = Callable[[Deployment], Service]

HEAD = "config: {edition: 3}\nstreams:\n"
NOTES = """
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes WHERE owner = auth.user_id()
"""
TODOS = """
  todos:
    auto_subscribe: true
    query: SELECT id, body FROM notes AS todos WHERE owner = auth.user_id()
"""

SCHEMA = {"notes": {"owner": "text", "body": "text"}, "todos": {"body": "text"}}
ROWS = 300
HELD = (
    "SELECT b.name AS bucket, cast(o.op_id AS text) AS op_id, o.row_id AS id"
    " FROM ps_oplog o JOIN ps_buckets b ON b.id = o.bucket WHERE o.row_type = 'notes' ORDER BY o.op_id"
)


class CountingProxy:
    """Between a device and the endpoint: counts sync connections, and ops on their way down."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._connections = 0
        self._down: list[bytearray] = []
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._run(self._accept)

    @property
    def connections(self) -> int:
        """How many streams were asked for so far."""
        with self._lock:
            return self._connections

    def ops(self) -> int:
        """How many ops the device was sent so far."""
        with self._lock:
            return sum(len(re.findall(rb'"op_id":"', each)) for each in self._down)

    def close(self) -> None:
        """End it with all its connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with self._lock:
            open_ones = list(self._open)
        for each in open_ones:
            _end(each)
        for thread in self._threads:
            thread.join(DEADLINE)
        self._listener.close()

    def _run(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._run(self._connect, self._listener.accept()[0])

    def _connect(self, device: socket.socket) -> None:
        down = bytearray()
        with device, socket.create_connection(("127.0.0.1", self._target)) as service:
            with self._lock:
                self._down.append(down)
                self._open |= {device, service}
            up = self._run(self._pass_up, device, service)
            self._pass_down(service, device, down)
            up.join(DEADLINE)
            with self._lock:
                self._open -= {device, service}

    def _pass_up(self, device: socket.socket, service: socket.socket) -> None:
        with suppress(OSError):
            while data := device.recv(1 << 16):
                # Compressed, ops could not be counted
                data = re.sub(rb"(?i)accept-encoding:[^\r\n]*", b"accept-encoding: identity", data)
                with self._lock:
                    self._connections += data.count(b"POST /sync/stream")
                service.sendall(data)
        _end(service)

    def _pass_down(self, service: socket.socket, device: socket.socket, down: bytearray) -> None:
        with suppress(OSError):
            while data := service.recv(1 << 16):
                with self._lock:
                    down += data
                device.sendall(data)
        _end(device)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Connected:
    """A device that has everything, and who deploys for it."""

    def __init__(self, service: Service, proxy: CountingProxy, device: Device, source: SourceDb, folder: Path) -> None:
        self._service = service
        self._file = folder / "new.yaml"
        self._source = source
        self.proxy = proxy
        self.device = device
        self.written = ROWS

    def deploy(self, yaml: str) -> str:
        """`headwater rules deploy`; returns what it says."""
        self._file.write_text(yaml, encoding="utf-8")
        outcome = headwater("rules", "deploy", self._file, "--config", self._service.config)
        assert outcome.code == 0, outcome
        return outcome.out

    def write(self) -> None:
        """A commit, and its arrival on the device."""
        self.written += 1
        self._source.execute("insert into notes values (%s, 'a', 'later')", f"later {self.written}")
        self.device.wait_for("SELECT count(*) AS n FROM notes", [{"n": self.written}])

    def costs(self, yaml: str, *, reconnects: bool) -> int:
        """Ops that the device downloads for a deploy. What it held it holds, under the same op ids."""
        held, ops, connections = self.device.query(HELD), self.proxy.ops(), self.proxy.connections
        self.deploy(yaml)
        if reconnects:
            wait_until(lambda: self.proxy.connections > connections, "the device to connect anew")
        before = self.written
        self.write()
        still = self.device.query(HELD)
        assert [each for each in still if each in held] == held
        assert len(still) == len(held) + self.written - before
        return self.proxy.ops() - ops - (self.written - before)


@pytest.fixture
def connected(
    source_db: SourceDb, deploy: Deploy, serve: Serve, device_factory: DeviceFactory, tmp_path: Path
) -> Iterator[Connected]:
    source_db.execute("create table notes (id text primary key, owner text, body text)")
    source_db.execute(f"insert into notes select i::text, 'a', 'note ' || i from generate_series(1, {ROWS}) i")
    source_db.execute("insert into notes select 'b' || i, 'b', 'note ' || i from generate_series(1, 50) i")
    service = serve(deploy(HEAD + NOTES).start())
    proxy = CountingProxy(service.port)
    device = device_factory(f"http://127.0.0.1:{proxy.port}", service.token("a"), SCHEMA)
    device.connect()
    device.wait_for("SELECT count(*) AS n FROM notes", [{"n": ROWS}])
    assert proxy.ops() == ROWS + 1, "the proxy sees every op"
    yield Connected(service, proxy, device, source_db, tmp_path)
    proxy.close()


@pytest.mark.timeout(400)
def test_redeploy_downloads_nothing_known(connected: Connected) -> None:
    assert connected.costs(HEAD + NOTES, reconnects=False) == 0, "the same config"
    assert connected.costs("# the same with a comment\n" + HEAD + NOTES, reconnects=True) == 0
    edited = NOTES.replace("auth.user_id()", "auth.user_id() AND auth.user_id() != 'nobody'")
    assert connected.costs(HEAD + edited, reconnects=True) == 0, "only the request side"


@pytest.mark.long
@pytest.mark.timeout(400)
def test_added_stream_brings_only_its_rows(connected: Connected) -> None:
    connected.write()
    rows = connected.written
    # The write that follows a deploy is in both streams; a bucket begins with a CLEAR
    assert connected.costs(HEAD + NOTES + TODOS, reconnects=True) == rows + 1 + 1
    connected.device.wait_for("SELECT count(*) AS n FROM todos", [{"n": connected.written}])
    assert connected.device.query("SELECT count(*) AS n FROM todos WHERE body = 'later'") == [{"n": 2}]
