"""What is in the stream but not followed costs the store next to nothing, and a store never follows itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.replication.meters import Figures
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.store import StorePublishedError
from headwater.storage.open import open_store
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import NOTES


class Counted(Figures):
    """Figures that count flushes."""

    flushes = 0

    def stored(self, transactions: int, rows: int, committed_us: int) -> None:
        super().stored(transactions, rows, committed_us)
        self.flushes += 1


def test_unfollowed_commits_are_stored_together(source_db: SourceDb, deploy: Callable[..., Deployment]) -> None:
    source_db.execute("create table notes (id text primary key, body text); create table other (id int primary key)")
    deployment = deploy(NOTES)
    counted = deployment.figures = Counted()
    deployment.start()
    deployment.caught_up()
    before = counted.flushes
    for number in range(30):
        source_db.execute(f"insert into other values ({number})")
        source_db.execute("select pg_sleep(0.02)")  # a writer's own time, enough for a flush
    assert counted.flushes - before < 15
    source_db.execute("insert into notes values ('1', 'x')")
    assert deployment.rows("ann").keys() == {("notes", "1")}


def test_published_store_is_refused(source_db: SourceDb) -> None:
    address = PostgresAddress(source_db.dsn, "kept", "the test's source")
    source_db.execute("create schema kept; create table kept.sources (id int); create publication app for all tables")
    backend = open_store(address)
    with pytest.raises(StorePublishedError, match=r"\[HW_4011\].*publication app publishes the store's own tables"):
        backend.raise_if_published(["app"])
    source_db.execute("drop publication app; create publication app for table kept.sources")
    backend.raise_if_published(["headwater"])


def test_publication_of_store_is_refused(source_db: SourceDb) -> None:
    source_db.execute("create publication app for all tables")
    with pytest.raises(StorePublishedError, match="publication app publishes the store's own tables"):
        open_store(PostgresAddress(source_db.dsn, "to_come", "the test's source")).raise_if_published(["app"])


def test_missing_store_rights_are_named(source_db: SourceDb) -> None:
    role = f"{source_db.name}_keeper"
    source_db.execute(f"create role {role} login")
    dsn = f"postgresql://{role}@127.0.0.1:{source_db.server.port}/{source_db.name}"
    backend = open_store(PostgresAddress(dsn, "kept", "the test's source"))

    def mended() -> list[str]:
        found = [statement for each in backend.missing_rights() for statement in each.sql]
        source_db.execute("; ".join(found))
        assert backend.missing_rights() == []
        return found

    try:
        assert mended() == [f'CREATE SCHEMA "kept" AUTHORIZATION "{role}"']
        backend.open_writer().close()
        assert backend.missing_rights() == []
        source_db.execute("alter table kept.meta owner to postgres")
        assert mended() == [f'ALTER TABLE "kept"."meta" OWNER TO "{role}"']
        source_db.execute("alter schema kept owner to postgres")
        assert mended() == [f'GRANT USAGE, CREATE ON SCHEMA "kept" TO "{role}"']
        backend.open_writer().close()
    finally:
        source_db.execute(f"drop owned by {role} cascade; drop schema if exists kept cascade; drop role {role}")
