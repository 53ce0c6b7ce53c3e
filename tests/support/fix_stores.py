"""Stores of every back end, for tests that promise the same of all."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress

NewAddress = Callable[[], StoreAddress]

LASTING = pytest.mark.parametrize("new_address", ["sqlite", "postgres"], indirect=True)
"""For what only stores can promise that outlive a process."""

_numbers = itertools.count(1)


@pytest.fixture(params=["sqlite", "postgres"])
def new_address(request: pytest.FixtureRequest) -> NewAddress:
    """Gives out addresses where no store is yet, of one back end."""
    make: NewAddress = request.getfixturevalue(f"new_{request.param}_address")
    return make


@pytest.fixture
def new_sqlite_address(tmp_path: Path) -> Callable[[], SqliteAddress]:
    """Gives out addresses where no store is yet."""
    return lambda: SqliteAddress(str(tmp_path / f"store-{next(_numbers)}"))


@pytest.fixture(scope="session")
def stores_dsn(postgres: EmbeddedPostgres) -> str:
    """A database for stores, each in a schema of its own."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("create database stores")
    return postgres.dsn("stores")


@pytest.fixture
def new_postgres_address(stores_dsn: str) -> Iterator[Callable[[], PostgresAddress]]:
    """Gives out addresses where no store is yet; what is made there goes with the test."""
    made: list[str] = []

    def make() -> PostgresAddress:
        made.append(f"store_{next(_numbers)}")
        return PostgresAddress(stores_dsn, made[-1], "test")

    yield make
    with psycopg.connect(stores_dsn, autocommit=True) as admin:
        for schema in made:
            admin.execute(sql.SQL("drop schema if exists {} cascade").format(sql.Identifier(schema)))
