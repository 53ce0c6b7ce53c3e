"""A connection pooler that no name gives away is recognised by what it does to a session, and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headwater.source.connect import SourceRefusedError, SourceSettings, connect, connection_error
from headwater.source.slot import SnapshotKeeper
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.store import StoreError
from headwater.storage.open import open_store
from tests.integration.pooler import silent_pooler
from tests.support.command import headwater_here
from tests.support.fix_postgres import SourceDb

DIRECTLY = "connect to Postgres itself"


def test_pooler_is_refused(source_db: SourceDb, tmp_path: Path) -> None:
    settings = source_db.settings()
    connect(settings).close()
    source_db.execute("create table notes (id text primary key, user_id text)")
    with silent_pooler(source_db.server.port) as port:
        pooled = replace(settings, port=port)
        with pytest.raises(SourceRefusedError, match=DIRECTLY):
            connect(pooled)
        with pytest.raises(SourceRefusedError, match=DIRECTLY):
            SnapshotKeeper(pooled, "lent", temporary=True)
        store = PostgresAddress(f"host=127.0.0.1 port={port} dbname={source_db.name} user=postgres sslmode=disable")
        with pytest.raises(StoreError, match=DIRECTLY):
            open_store(store).open_writer()
        uri = f"postgresql://postgres@127.0.0.1:{port}/{source_db.name}"
        refused = headwater_here("init", "--yes", "--sdk", "none", "--uri", uri, cwd=tmp_path)
    assert (refused.code, DIRECTLY in refused.err) == (1, True), refused.err
    assert source_db.fetch("select nspname from pg_namespace where nspname = 'headwater'") == []


@pytest.mark.parametrize(
    "message",
    [
        "FATAL:  unsupported startup parameter: options",
        "FATAL:  unsupported startup parameter in options: synchronous_commit",
        "FATAL:  unsupported startup parameter: replication",
    ],
)
def test_pgbouncer_errors_are_understood(message: str) -> None:
    """Its words, from 1.18 and from 1.20 on."""
    settings = SourceSettings("db.internal", "shop", "app", port=6432)
    error = connection_error(settings, psycopg.OperationalError(f"connection failed: {message}"))
    assert isinstance(error, SourceRefusedError)
    assert DIRECTLY in error.fix
