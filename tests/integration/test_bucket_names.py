"""Buckets whose names have the same key, because the hash of names is planted to be weak: users get their own rows, and
only those, whatever the service does."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import pytest

from headwater.oplog.keys import StoreKeys
from headwater.replication.requests import RequestKind
from headwater.storage.contract.versions import VersionState
from tests.support.fix_headwater import Deploy, Deployment

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

CONFIG = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT id, text FROM notes WHERE owner = auth.user_id()
"""
WITH_FOLDERS = f"""{CONFIG}
  folders:
    auto_subscribe: true
    query: SELECT id, text, folder FROM notes WHERE owner = auth.user_id() AND folder = auth.parameter('folder')
"""
USERS = [f"u{number}" for number in range(7)]


@pytest.fixture(autouse=True)
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """All buckets have one of three keys."""
    monkeypatch.setattr(StoreKeys, "hashed_name", lambda _, name: crc32(name.encode()) % 3)


def own(deployment: Deployment) -> None:
    """Every user has the rows that are his, and no others."""
    found = {user: {row_id for _, row_id in deployment.rows(user, folder="f1")} for user in USERS}
    rows = deployment.source.connection.execute("select owner, id from notes").fetchall()
    assert found == {user: {row_id for owner, row_id in rows if owner == user} for user in USERS}
    assert deployment.problems() == []


@pytest.mark.parametrize("on_postgres", [False, True])
def test_users_whose_buckets_share_a_key_get_their_own_rows(
    deploy: Deploy, source_db: SourceDb, *, on_postgres: bool
) -> None:
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
