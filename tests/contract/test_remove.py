"""Removing a store."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import sql

from headwater.storage.address import PostgresAddress
from headwater.storage.open import open_store
from tests.contract.source_writer import A, SourceWriter


def test_a_store_that_was_removed_is_made_anew(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    world.store.close()
    backend = open_store(world.address)
    with backend.open_part(1, 0, "left over"):
        pass
    backend.remove()
    assert not backend.exists()
    backend.remove()
    store = backend.open_writer()
    assert store.tables("source") == []
    store.close()


def test_a_table_of_somebody_else_in_its_schema_stays(new_postgres_address: Callable[[], PostgresAddress]) -> None:
    address = new_postgres_address()
    open_store(address).open_writer().close()
    with psycopg.connect(address.conninfo, autocommit=True) as conn:
        conn.execute(sql.SQL("create table {} (id int)").format(sql.Identifier(address.schema, "orders")))
        open_store(address).remove()
        left = conn.execute("select tablename from pg_tables where schemaname = %s", [address.schema]).fetchall()
    assert left == [("orders",)]
