"""Stores that earlier versions left: this one brings them up to date, serves their devices without a download, goes on
writing, and compacts them.

tests/support/stores has one of each back end in each format from the first release on. `keep.py` there made them, and
says how. When the format moves on, those of the one before are upgraded here, and one of the new format is added.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg
import pytest
import zstandard

from headwater.oplog.op import OpId
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.open import open_store
from headwater.storage.postgres.connection import FORMAT as POSTGRES_FORMAT
from headwater.storage.sqlite.connection import FORMAT as SQLITE_FORMAT
from tests.support.command import headwater_here
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import client_auth, free_port, token_for
from tests.support.model_client import ModelClient
from tests.support.model_device import ModelBucket
from tests.support.ruled_store import SOURCE
from tests.support.store_checker import problems
from tests.support.stores.keep import ROUNDS, SCHEMA, change, notes_after
from tests.support.waiting import wait_until
from tests.support.written_store import YAML

KEPT = Path(__file__).parents[1] / "support" / "stores"
STORES = ("sqlite-1", "postgres-1", "sqlite-2", "postgres-2", "sqlite-3", "postgres-3", "sqlite-4", "postgres-4")


@dataclass(frozen=True)
class Kept:
    """A store as it was left, and the sums of the buckets that a device had at that checkpoint."""

    address: StoreAddress
    config: dict[str, object]
    checkpoint: int
    sums: dict[str, int]

    def device(self, user: str) -> ModelClient:
        """A device of that time, which knows where it stands and the sum of what it has."""
        name = self.bucket(user)
        return ModelClient({name: ModelBucket(self.checkpoint, self.sums[name])})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.config['port']}"

    def bucket(self, user: str) -> str:
        (name,) = [each for each in self.sums if user in each]
        return name


@pytest.fixture(params=STORES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    name: str = request.param
    stored = zstandard.decompress((KEPT / f"{name}.zst").read_bytes())
    address: StoreAddress
    if name.startswith("sqlite"):
        (tmp_path / "store").mkdir()
        (tmp_path / "store/store.db").write_bytes(stored)
        address = SqliteAddress(str(tmp_path / "store"))
        storage = {"type": "sqlite", "path": address.directory}
    else:
        database: SourceDb = request.getfixturevalue("source_db")
        with psycopg.connect(database.dsn, autocommit=True) as own:
            own.execute(stored)
        address = PostgresAddress(database.dsn, SCHEMA)
        storage = {"type": "postgresql", "uri": uri(database.dsn), "sslmode": "disable"}
    device = json.loads((KEPT / f"{name}.json").read_text())
    source = {"type": "postgresql", "uri": "postgresql://app@127.0.0.1:1024/shop", "sslmode": "disable"}
    config = {
        "replication": {"connections": [source]},
        "storage": storage,
        "sync_config": {"content": YAML},
        "port": free_port(),
        "api": {"workers": 1},
        "client_auth": client_auth(),
    }
    return Kept(address, config, device["checkpoint"], device["buckets"])


def uri(dsn: str) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    return f"postgresql://{parts['user']}@{parts['host']}:{parts['port']}/{parts['dbname']}"


def synced(kept: Kept, device: ModelClient, user: str) -> int:
    """The ops that a device is sent until it is complete, whose checksums it verifies."""
    asked = [{"name": name, "after": str(after)} for name, after in device.connect().items()]
    headers = {"authorization": f"Token {token_for(user)}"}
    known, before = len(device.lines), device.completed
    body = {"buckets": asked, "raw_data": True}
    with httpx.stream("POST", f"{kept.url}/sync/stream", json=body, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            device.receive(f"{line}\n".encode())
            if device.completed > before:
                break
    return str(device.lines[known:]).count("'op_id'")


def shown(rounds: int, user: str) -> dict[str, str]:
    return {key: text for key, (owner, text) in notes_after(rounds).items() if owner == user}


def texts(device: ModelClient) -> dict[str, str]:
    return {key: str(row["text"]) for (_, key), row in device.rows.items()}


def upgraded(kept: Kept) -> None:
    backend = open_store(kept.address)
    backend.open_writer().close()
    assert backend.older_format() is None


def started(kept: Kept) -> bool:
    try:
        return httpx.get(f"{kept.url}/probes/startup").status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def endpoint(kept: Kept, launch: Launch) -> Iterator[None]:
    running = launch("api", kept.config)
    wait_until(lambda: started(kept), "the endpoint")
    yield
    running.ask_to_end()
    assert running.wait() == 0


def test_earlier_store_goes_on(kept: Kept, launch: Launch, tmp_path: Path) -> None:
    upgraded(kept)
    users = ("u0", "u1")
    devices = {user: kept.device(user) for user in users}
    new = {user: ModelClient() for user in users}
    history = {}
    with endpoint(kept, launch):
        for user in users:
            assert synced(kept, devices[user], user) == 0, "nothing is downloaded again"
            assert [*devices[user].buckets] == [kept.bucket(user)]
            history[user] = synced(kept, new[user], user)
            assert texts(new[user]) == shown(ROUNDS, user)
        with closing(open_store(kept.address).open_writer()) as store:
            lease = store.acquire(SOURCE, "upgraded", 60.0)
            change(store, lease, notes_after(ROUNDS), notes_after(ROUNDS + 1))
            store.release(lease)
        changed = notes_after(ROUNDS).items() ^ notes_after(ROUNDS + 1).items()
        for user in users:
            assert 0 < synced(kept, devices[user], user) <= len(changed), "what changed, and nothing else"
            synced(kept, new[user], user)
            assert texts(new[user]) == shown(ROUNDS + 1, user)
        compact(kept, tmp_path, budget=0)
        for user in users:
            assert synced(kept, devices[user], user) == 0, "who has everything is not disturbed"
        compact(kept, tmp_path, budget=1_000_000)
        for user in users:
            fresh = ModelClient()
            assert 2 * synced(kept, fresh, user) < history[user], "a new device downloads less"
            assert texts(fresh) == shown(ROUNDS + 1, user)
            synced(kept, devices[user], user)
    assert problems(kept.address) == []


def compact(kept: Kept, tmp_path: Path, budget: int) -> None:
    (tmp_path / "headwater.json").write_text(json.dumps(kept.config))
    done = headwater_here("compact", "--config", tmp_path / "headwater.json", "--budget", str(budget))
    assert done.code == 0, done
    with closing(open_store(kept.address).open_compaction()) as store:
        upto = store.checkpoint()
        left = [each.name for each in store.buckets(OpId(0)) if store.unsealed_ops(each.key, upto, 1)]
    assert left == [] or budget == 0, "everything is sealed"


def test_present_format_is_tested() -> None:
    for kind, now in (("sqlite", SQLITE_FORMAT), ("postgres", POSTGRES_FORMAT)):
        assert f"{kind}-{now}" in STORES, "keep one of this commit: see above"
