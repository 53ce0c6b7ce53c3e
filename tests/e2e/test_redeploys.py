"""A connected stock SDK through redeploys of the sync config: what did not change is not downloaded again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.command import headwater
from tests.support.fix_devices import Device, DeviceFactory
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.network import Change, Network
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


class CountingProxy(Network):
    """Between a device and the endpoint: counts sync connections, and ops on their way down."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.connections = 0
        self._down: list[bytearray] = []

    def ops(self) -> int:
        """How many ops the device was sent so far."""
        return sum(each.count(b'"op_id":"') for each in self._down)

    def carried(self) -> tuple[Change, Change]:
        self._down.append(bytearray())
        return self._up, partial(self._keep, self._down[-1])

    def _up(self, data: bytes) -> bytes:
        self.connections += data.count(b"POST /sync/stream")
        # Compressed, ops could not be counted
        return re.sub(rb"(?i)accept-encoding:[^\r\n]*", b"accept-encoding: identity", data)

    def _keep(self, down: bytearray, data: bytes) -> bytes:
        down += data
        return data


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
    with CountingProxy(service.port) as proxy:
        device = device_factory(f"http://127.0.0.1:{proxy.port}", service.token("a"), SCHEMA)
        device.connect()
        device.wait_for("SELECT count(*) AS n FROM notes", [{"n": ROWS}])
        assert proxy.ops() == ROWS + 1, "the proxy sees every op"
        yield Connected(service, proxy, device, source_db, tmp_path)


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
