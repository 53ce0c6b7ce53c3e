"""Stores of either back end, for tests that promise the same of both."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress

_numbers = itertools.count(1)


@pytest.fixture
def new_postgres_store(postgres: EmbeddedPostgres) -> Iterator[Callable[[], StoreAddress]]:
    """Gives out addresses where no store is yet, in a database of the test's own."""
    name = f"stores_{next(_numbers)}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        yield lambda: PostgresAddress(postgres.dsn(name), f"store_{next(_numbers)}")
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(params=["sqlite", "postgres"])
def new_store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StoreAddress]:
    """Gives out addresses where no store is yet, of one back end."""
    if request.param == "postgres":
        make: Callable[[], StoreAddress] = request.getfixturevalue("new_postgres_store")
        return make
    return lambda: SqliteAddress(str(tmp_path / f"store-{next(_numbers)}"))
