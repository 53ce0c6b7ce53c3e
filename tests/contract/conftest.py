"""Every test of the contract runs against every back end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from headwater.storage.contract.reader import StoreReader
from headwater.storage.open import open_store
from tests.contract.source_writer import SOURCE, SourceWriter
from tests.support.fix_stores import NewAddress
from tests.support.written_store import A, B, C, WrittenStore


@pytest.fixture
def new_writer(new_address: NewAddress) -> Iterator[Callable[..., SourceWriter]]:
    """Opens writers: of a new store, or with `beside` another one of the same store for another source."""
    with ExitStack() as stack:

        def make(*, beside: SourceWriter | None = None, source: str = SOURCE, owner: str = "here:1") -> SourceWriter:
            address = beside.address if beside else new_address()
            store = open_store(address).open_writer()
            stack.callback(store.close)
            return SourceWriter(address, store, store.acquire(source, owner, 30.0), source)

        yield make


@pytest.fixture
def writer(new_writer: Callable[..., SourceWriter]) -> SourceWriter:
    return new_writer()


@pytest.fixture
def written(new_address: NewAddress) -> Iterator[WrittenStore]:
    with closing(WrittenStore(new_address())) as store:
        yield store


@pytest.fixture
def lived(written: WrittenStore) -> WrittenStore:
    """Bulk work, changes, removals and a bucket that comes later."""
    written.publish({str(i): (A if i % 3 else B, f"text {i}") for i in range(3000)})
    for step in range(5):
        written.write({str(i): (A, f"step {step}") for i in range(step * 10, step * 10 + 20)})
    written.write({"1": None, "2": (C, "moved")})
    return written


@pytest.fixture
def open_reading(new_address: NewAddress) -> Iterator[Callable[[SourceWriter], StoreReader]]:
    """Opens a reader of a writer's store."""
    with ExitStack() as stack:

        def make(writer: SourceWriter) -> StoreReader:
            reader = open_store(writer.address).open_reader()
            stack.callback(reader.close)
            return reader

        yield make


@pytest.fixture
def reader(writer: SourceWriter, open_reading: Callable[[SourceWriter], StoreReader]) -> StoreReader:
    return open_reading(writer)
