"""The upload endpoint over a real Postgres: devices that send, and what of it is in the database."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from headwater.source.connect import SourceSettings
from headwater.source.upload.prepare import prepare_uploads
from headwater.source.upload.settings import TableRule, UploadSettings
from tests.support.memory_store import MemoryStore

if TYPE_CHECKING:  # plugins must not import each other: pytest rewrites each as it loads it
    from headwater.embedded.postgres import EmbeddedPostgres
    from tests.support.fix_api import Endpoint
    from tests.support.fix_postgres import Connection, SourceDb

Entry = dict[str, Any]

_devices = itertools.count(1)


@dataclass
class Device:
    """A device that sends what it is told to, numbering ops as the SDK does."""

    uploads: Uploads
    user: str
    client_id: str = field(default_factory=lambda: f"device-{next(_devices)}")
    next_op: int = 1

    def transaction(self, *entries: Entry) -> dict[str, Any]:
        """A transaction with the next op ids, not sent yet."""
        crud = []
        for entry in entries:
            crud.append({"op_id": self.next_op, "tx_id": self.next_op, **entry})
            self.next_op += 1
        return {"crud": crud}

    def post(self, *transactions: dict[str, Any]) -> httpx.Response:
        """Send these in one request."""
        return self.uploads.post(self.user, {"client_id": self.client_id, "transactions": list(transactions)})

    def answers(self, *transactions: dict[str, Any]) -> list[dict[str, Any]]:
        """What is said to each of these."""
        response = self.post(*transactions)
        assert response.status_code == 200, response.text
        found: list[dict[str, Any]] = response.json()["transactions"]
        return found

    def send(self, *entries: Entry) -> dict[str, Any]:
        """Send one transaction; what is said to it."""
        (answer,) = self.answers(self.transaction(*entries))
        return answer

    def applied(self, *entries: Entry) -> None:
        """Send one transaction, which has to be applied."""
        answer = self.send(*entries)
        assert answer["outcome"] == "applied", answer

    def parked(self, *entries: Entry) -> dict[str, Any]:
        """Send one transaction, which has to be put aside; why it was."""
        answer = self.send(*entries)
        assert answer["outcome"] == "parked", answer
        error: dict[str, Any] = answer["error"]
        return error


@dataclass
class Uploads:
    """An endpoint that takes uploads, and its database."""

    db: SourceDb
    settings: UploadSettings
    endpoint: Endpoint
    token: Callable[..., str]

    def device(self, user: str = "ann") -> Device:
        return Device(self, user)

    def post(self, user: str, body: object, **claims: object) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Token {self.token(user, **claims)}"}
        return self.endpoint.http.post("/upload", content=content, headers=headers, timeout=30)

    def config(self, folder: Path) -> dict[str, Any]:
        """A service config for the same source."""
        from tests.support.fix_api import AUDIENCE, SECRET
        from tests.support.fix_service import client_auth, connection_to, free_port

        login = self.settings.login
        return {
            "replication": {"connections": [connection_to(login.port, login.database, login.user)]},
            "storage": {"type": "sqlite", "path": str(folder / "store")},
            "client_auth": client_auth(SECRET, AUDIENCE),
            "upload": {"role": self.settings.role, "tables": {"notes": {}}},
            "port": free_port(),
        }

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self.db.fetch(query, *parameters)


def put(table: str, row_id: str, **data: object) -> Entry:
    return {"op": "PUT", "type": table, "id": row_id, "data": data}


def patch(table: str, row_id: str, old: Mapping[str, object] | None = None, **data: object) -> Entry:
    return {"op": "PATCH", "type": table, "id": row_id, "data": data, **({} if old is None else {"old": dict(old)})}


def delete(table: str, row_id: str, old: Mapping[str, object] | None = None) -> Entry:
    return {"op": "DELETE", "type": table, "id": row_id, **({} if old is None else {"old": dict(old)})}


NOTES = """
create table notes (id text primary key, owner text not null, title text check (title <> ''), body text, n integer);
alter table notes enable row level security;
create policy mine on notes using (owner = current_setting('request.jwt.claims', true)::json ->> 'sub');
"""
ALL = "select id, owner, title, n from notes order by id"
RULE = TableRule("public", "notes")


@pytest.fixture
def upload_role(source_db: SourceDb) -> Iterator[str]:
    """The role that uploads are done as. Roles belong to the server, so it goes with the test."""
    role = f"{source_db.name}_app"
    yield role
    if source_db.fetch("select from pg_roles where rolname = %s", role):
        source_db.execute(f"drop owned by {role}; drop role {role}")


@pytest.fixture
def crm_db(
    source_db: SourceDb, postgres: EmbeddedPostgres, maintenance: Connection, upload_role: str
) -> Iterator[SourceDb]:
    """A second database of the same server, gone before the role is."""
    from tests.support.fix_postgres import SourceDb

    maintenance.execute(f"create database {source_db.name}_crm")
    database = SourceDb(postgres, f"{source_db.name}_crm")
    try:
        yield database
    finally:
        database.drop(maintenance)


@pytest.fixture
def uploads_of(
    source_db: SourceDb, upload_role: str, start_endpoint: Callable[..., Endpoint], memory_store: MemoryStore
) -> Callable[..., Uploads]:
    """`uploads_of({"notes": TableRule("public", "notes")}, max_per_user=1)`: an endpoint over the prepared database."""
    from tests.support.fix_api import make_token

    def start(tables: Mapping[str, TableRule], **settings: Any) -> Uploads:
        server = source_db.server
        info = source_db.connection.info
        login = SourceSettings(
            host=info.host, port=info.port, database=source_db.name, user=info.user, sslmode="disable"
        )
        made = replace(UploadSettings(login, upload_role, tables, wait_seconds=0), **settings)
        assert server is not None
        prepare_uploads(made)
        return Uploads(source_db, made, start_endpoint(memory_store, upload=made), make_token)

    return start


@pytest.fixture
def notes_of(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> Callable[..., Uploads]:
    """`notes_of(TableRule(…), max_per_user=1)`: an endpoint that takes writes to `notes`, which it made."""
    source_db.execute(NOTES)
    return lambda rule=RULE, **settings: uploads_of({"notes": rule}, **settings)


@pytest.fixture
def uploads(notes_of: Callable[..., Uploads]) -> Uploads:
    """An endpoint that takes writes to `notes`, each user's own."""
    return notes_of()
