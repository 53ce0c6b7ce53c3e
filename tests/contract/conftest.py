"""Every test of the contract runs against both back ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.store import StoreReader
from headwater.storage.open import open_backend
from tests.contract.world import SOURCE, World

NewAddress = Callable[[], StoreAddress]

_numbers = itertools.count(1)


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


@pytest.fixture(params=["sqlite", "postgres"])
def new_address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NewAddress:
    """Gives out addresses where no store is yet, of one back end."""
    if request.param == "postgres":
        make: NewAddress = request.getfixturevalue("new_postgres_address")
        return make

    def directory() -> SqliteAddress:
        return SqliteAddress(str(Path(tmp_path_factory.mktemp("store")) / "store"))

    return directory


@pytest.fixture
def open_world(new_address: NewAddress) -> Iterator[Callable[..., World]]:
    """Opens writers: of a new store, or with `beside` another one of the same store for another source."""
    with ExitStack() as stack:

        def make(*, beside: World | None = None, source: str = SOURCE, owner: str = "here:1") -> World:
            address = beside.address if beside else new_address()
            store = open_backend(address).open_store()
            stack.callback(store.close)
            return World(address, store, store.acquire(source, owner, 30.0), source)

        yield make


@pytest.fixture
def world(open_world: Callable[..., World]) -> World:
    return open_world()


@pytest.fixture
def open_reading(new_address: NewAddress) -> Iterator[Callable[[World], StoreReader]]:
    """Opens a reader of a world's store."""
    with ExitStack() as stack:

        def make(world: World) -> StoreReader:
            reader = open_backend(world.address).open_reader()
            stack.callback(reader.close)
            return reader

        yield make


@pytest.fixture
def reader(world: World, open_reading: Callable[[World], StoreReader]) -> StoreReader:
    return open_reading(world)
