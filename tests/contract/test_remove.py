"""Removing a store."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql

from headwater.storage.address import PostgresAddress
from headwater.storage.open import open_store
from tests.contract.source_writer import A, SourceWriter


def test_removed_store_is_made_anew(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    writer.store.close()
    backend = open_store(writer.address)
    with backend.open_part(1, 0, "left over"):
        pass
    backend.remove()
    assert not backend.exists()
    backend.remove()
    store = backend.open_writer()
    assert store.tables("source") == []
    store.close()


def test_foreign_table_stays(new_postgres_address: Callable[[], PostgresAddress]) -> None:
    address = new_postgres_address()
    open_store(address).open_writer().close()
    with psycopg.connect(address.conninfo, autocommit=True) as conn:
        conn.execute(sql.SQL("create table {} (id int)").format(sql.Identifier(address.schema, "orders")))
        open_store(address).remove()
        left = conn.execute("select tablename from pg_tables where schemaname = %s", [address.schema]).fetchall()
    assert left == [("orders",)]
