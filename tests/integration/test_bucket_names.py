"""Buckets whose names have the same key, because the hash of names is planted to be weak: users get their own rows, and
only those, whatever the service does."""

from __future__ import annotations

import base64
import json
from functools import partial
from zlib import crc32

import httpx
import pytest

from headwater.oplog.keys import StoreKeys
from headwater.replication.requests import RequestKind
from headwater.storage.contract.versions import VersionState
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.one_device import sees
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

CONFIG = auto_streams(notes="SELECT id, text FROM notes WHERE owner = auth.user_id()")
WITH_FOLDERS = f"""{CONFIG}
  folders:
    auto_subscribe: true
    query: SELECT id, text, folder FROM notes WHERE owner = auth.user_id() AND folder = auth.parameter('folder')
"""
USERS = [f"u{number}" for number in range(7)]


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """All buckets have one of three keys."""
    monkeypatch.setattr(StoreKeys, "hashed_name", lambda _, name: crc32(name.encode()) % 3)


def own(deployment: Deployment) -> None:
    """Every user has the rows that are his, and no others."""
    found = {user: {row_id for _, row_id in deployment.rows(user, folder="f1")} for user in USERS}
    rows = deployment.source.connection.execute("select owner, id from notes").fetchall()
    assert found == {user: {row_id for owner, row_id in rows if owner == user} for user in USERS}
    assert deployment.problems() == []


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize("on_postgres", [False, True])
def test_colliding_bucket_keys_keep_users_apart(deploy: Deploy, source_db: SourceDb, *, on_postgres: bool) -> None:
    source_db.execute("create table notes (id text primary key, owner text, folder text, text text)")
    source_db.execute(
        "insert into notes select 'n' || i, 'u' || i % 4, 'f' || i % 2, 'note ' || i from generate_series(1, 60) i"
    )
    deployment = deploy(CONFIG, on_postgres=on_postgres).start()
    own(deployment)
    source_db.execute("insert into notes select 'm' || i, 'u' || i % 7, 'f1', 'more' from generate_series(1, 50) i")
    source_db.execute("update notes set owner = 'u5' where id in ('n1', 'n2', 'm3')")
    own(deployment)
    source_db.execute("delete from notes where owner = 'u0'")
    own(deployment)
    assert deployment.redeploy(WITH_FOLDERS).state is VersionState.ACTIVE
    own(deployment)
    deployment.close()
    deployment.start()
    source_db.execute("update notes set text = 'after the restart' where owner in ('u1', 'u6')")
    own(deployment)
    audited = deployment.ask(RequestKind.AUDIT)
    assert (audited["state"], audited["buckets"], audited["rows"]) == ("done", [], [])
    source_db.execute("truncate notes")
    source_db.execute("insert into notes select 'k' || i, 'u' || i % 7, 'f1', 'new' from generate_series(1, 30) i")
    own(deployment)


WITH_TASKS = f"""{CONFIG}
  tasks:
    auto_subscribe: true
    query: SELECT id, text FROM tasks WHERE owner = auth.user_id()
"""


@pytest.mark.usefixtures("weak")
@pytest.mark.parametrize("on_postgres", [False, True])
def test_compare_with_colliding_bucket_keys(deploy: Deploy, source_db: SourceDb, *, on_postgres: bool) -> None:
    """The rows of a table that is made later. What the comparison merges with has to learn the new keys, too."""
    source_db.execute("create table notes (id text primary key, owner text, folder text, text text)")
    source_db.execute("insert into notes select 'n' || i, 'u' || i % 2, 'f', 'x' from generate_series(1, 9) i")
    deployment = deploy(WITH_TASKS, on_postgres=on_postgres).start()
    source_db.execute(
        "create table tasks (id text primary key, owner text, text text);"
        "insert into tasks select 't' || i, 'u' || i % 7, 'task' from generate_series(1, 50) i"
    )
    tasks = {user: {row[0] for row in source_db.fetch("select id from tasks where owner = %s", user)} for user in USERS}

    def found() -> dict[str, set[str]]:
        return {user: {key for table, key in deployment.rows(user) if table == "tasks"} for user in USERS}

    wait_until(lambda: found() == tasks, "the rows of the new table")
    notes = {user: {key for table, key in deployment.rows(user) if table == "notes"} for user in USERS}
    rows = source_db.fetch("select owner, id from notes")
    assert notes == {user: {key for owner, key in rows if owner == user} for user in USERS}
    assert deployment.problems() == []


ADMIN = "an-admin-token-of-the-tests"
OURS = "/api/headwater/v1"
ASKED: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("GET", "/api/admin/v1/status", {}),
    ("POST", "/api/admin/v1/diagnostics", {"sync_rules_content": True}),
    ("GET", f"{OURS}/versions", {}),
    ("GET", f"{OURS}/clients", {}),
    ("POST", f"{OURS}/explain/user", {"client": {"user": "u1"}}),
    ("POST", f"{OURS}/explain/row", {"client": {"user": "u1"}, "table": "notes", "id": "n1"}),
)


def test_store_secret_is_not_shown(
    deploy: Deploy, source_db: SourceDb, launch: Launch, caplog: pytest.LogCaptureFixture
) -> None:
    source_db.execute("create table notes (id text primary key, owner text, folder text, text text)")
    source_db.execute("insert into notes select 'n' || i, 'u1', 'f', 'note' from generate_series(1, 9) i")
    port, metrics = free_port(), free_port()
    with caplog.at_level("DEBUG"):
        deployment = deploy(CONFIG).start()
        config = {
            **config_of(deployment, port),
            "telemetry": {"prometheus_port": metrics},
            "system": {"logging": {"level": "debug"}},
            "api": {"workers": 1, "tokens": [ADMIN]},
        }
        running = launch("api", config, "--unified")
        running.wait_for("startup complete")
        client = sees(port, partial(source_db.execute, "insert into notes values ('new', 'u1', 'f', 'x')"), user="u1")
        told = [json.dumps(client.lines), httpx.get(f"http://127.0.0.1:{metrics}/metrics").text]
        for method, path, body in ASKED:
            headers = {"authorization": f"Bearer {ADMIN}"}
            answer = httpx.request(method, f"http://127.0.0.1:{port}{path}", headers=headers, json=body or None)
            assert answer.status_code == 200, answer.text
            told.append(answer.text)
    with deployment.store() as store:
        secret, shown = store.keys().secret, [repr(store.keys()), str(store.keys())]
    said = "".join([*told, *shown, running.output, caplog.text])
    assert len(said) > 5_000
    coded = (base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode())
    for form in (secret.hex(), repr(secret), *coded):
        assert form not in said
