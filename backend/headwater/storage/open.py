"""From an address to a store, whichever back end it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.parts import PartWriter, PlacedRow
from headwater.storage.contract.requests import RequestStore
from headwater.storage.contract.store import StoreReader, StoreWriter
from headwater.storage.contract.versions import OwnConfig, VersionStore
from headwater.storage.shared.loading import BATCH_BYTES


class Store(StoreWriter, VersionStore, RequestStore, Protocol):
    """Everything that a store can do for those who write to it."""

    @property
    def address(self) -> StoreAddress: ...


def open_store(address: StoreAddress) -> Store:
    """The writing side; makes a new store where there is none, and brings an older format up to date."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import SqliteStore

            return SqliteStore(Path(address.directory))
        case PostgresAddress():
            from headwater.storage.postgres import PostgresStore

            return PostgresStore(address)


def open_reader(address: StoreAddress, own: OwnConfig | None = None) -> StoreReader:
    """The endpoint's side, which serves its `own` config while that is replaced by another file. Makes an empty store
    when there is none, so that processes may start in any order."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite import SqliteStore

            return SqliteStore.open_reader(Path(address.directory), own)
        case PostgresAddress():
            from headwater.storage.postgres import PostgresStore

            return PostgresStore.open_reader(address, own)


def open_part(address: StoreAddress, table: int, number: int, attempt: str) -> PartWriter:
    """On an executor: where task `number` writes what is to go into `table`. `attempt` tells its tries apart."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite.stage import StageFile

            path = Path(address.directory) / "stage" / f"part-{number:05d}-{attempt}.db"
            return StageFile(path, table, attempt)
        case PostgresAddress():
            from headwater.storage.postgres.stage import StageTables

            return StageTables(address, table, number, attempt)


def read_rows(
    address: StoreAddress, table: int, first: int, end: int, room: int = BATCH_BYTES
) -> Iterator[list[PlacedRow]]:
    """On an executor: the current rows at places [first, end) of a table, as of one moment, in batches of no more than
    about `room` bytes."""
    match address:
        case SqliteAddress():
            from headwater.storage.sqlite.rows import read_rows as read_sqlite

            return read_sqlite(Path(address.directory), table, first, end, room)
        case PostgresAddress():
            from headwater.storage.postgres.rows import read_rows as read_postgres

            return read_postgres(address, table, first, end, room)
