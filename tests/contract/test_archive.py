"""What `storage.contract.archive` and `storage.contract.seal` promise: a store comes out and goes in with every id as
it is, and one that is told to be out of use can't be written to any more."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from headwater.oplog.lsn import Lsn
from headwater.storage.address import StoreAddress
from headwater.storage.contract.archive import ArchiveError, DumpPart, Row, StoreNotEmptyError, StoreState
from headwater.storage.contract.revocations import RevokedKind
from headwater.storage.contract.seal import SealedStoreError
from headwater.storage.contract.store import LeaseHeldError
from headwater.storage.open import open_backend
from tests.support.fix_stores import NewAddress
from tests.support.model_device import ModelBucket
from tests.support.store_checker import problems
from tests.support.written_store import SOURCE, WrittenStore, catch_up, compact, shown

A, B, C = 'todos["a"]', 'todos["b"]', 'notes["c"]'

Taken = list[tuple[DumpPart, list[Row]]]


@pytest.fixture
def lived(written: WrittenStore) -> WrittenStore:
    """Bulk work, live changes, compaction, a comparison that is on its way, a client that waits for its write."""
    written.publish({str(i): (A if i % 3 else B, f"text {i}\t\\ ü") for i in range(1500)})
    written.write({str(i): (A, "changed") for i in range(20)})
    compact(written.address, A)
    written.write({"1": None, "2": (C, "moved"), "x" * 900: (C, "a long id")})
    with closing(open_backend(written.address).open_reader()) as reader:
        reader.create_write_checkpoint(["u/1", "u/2"], {SOURCE: Lsn(5)})
    written.store.revoke(RevokedKind.USER, "u", 3600.0)
    return written


def taken_out(address: StoreAddress, scratch: Path) -> tuple[StoreState, Taken]:
    """All of a store, in an order that does not depend on the back end."""
    with open_backend(address).dump(scratch) as dump:
        frozen = open_backend(dump.view.address)
        parts = [
            (part, sorted((row for rows in frozen.read_part(dump.view.snapshot, part) for row in rows), key=repr))
            for part in dump.parts
        ]
    assert all(part.rows == len(rows) for part, rows in parts if not part.is_range)
    return dump.state, parts


def by_dataset(parts: Taken) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part, rows in parts:
        found.setdefault(part.dataset, []).extend(map(repr, rows))
    return {dataset: sorted(rows) for dataset, rows in found.items()}


def take_in(address: StoreAddress, state: StoreState, parts: Taken, counts: dict[str, int] | None = None) -> None:
    """Build a store that has so many rows of each dataset, by default as many as there are."""
    with open_backend(address).load() as load:
        target = open_backend(load.address)
        for part, rows in sorted(parts, key=lambda each: each[0].dataset != "tables"):
            target.load_rows(part.dataset, in_batches(rows))
        load.finish(state, counts or counted(parts))


def counted(parts: Taken) -> dict[str, int]:
    return {dataset: len(rows) for dataset, rows in by_dataset(parts).items()}


def in_batches(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[i : i + 700] for i in range(0, len(rows), 700)]


def test_a_store_that_moved_is_the_same_and_goes_on(
    lived: WrittenStore, new_address: NewAddress, tmp_path: Path
) -> None:
    device = {name: ModelBucket() for name in (A, B, C)}
    catch_up(lived.address, device)
    state, parts = taken_out(lived.address, tmp_path / "first")
    address = new_address()
    take_in(address, state, parts)
    again, there = taken_out(address, tmp_path / "second")
    assert (again.secret, again.checkpoint, again.config) == (state.secret, state.checkpoint, state.config)
    assert by_dataset(there) == by_dataset(parts)
    assert problems(address) == []
    with closing(WrittenStore(address)) as moved:
        moved.rows = dict(lived.rows)
        moved.write({"3": (A, "written after the move"), "4": None})
        assert catch_up(address, device) == 2, "nothing but the news"
        assert shown(device) == moved.standing()
        moved.truncate()
        assert moved.table > lived.table, "ids are not given out again"
    with closing(open_backend(address).open_reader()) as reader:
        assert reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(9)}) == {"u/1": 2}


def test_what_is_taken_out_is_of_one_moment(lived: WrittenStore, tmp_path: Path) -> None:
    _, before = taken_out(lived.address, tmp_path / "before")
    with open_backend(lived.address).dump(tmp_path / "during") as dump:
        lived.write({"5": (B, "meanwhile"), "6": None})
        lived.truncate()
        frozen = open_backend(dump.view.address)
        parts = [
            (part, [row for rows in frozen.read_part(dump.view.snapshot, part) for row in rows]) for part in dump.parts
        ]
    assert by_dataset(parts) == by_dataset(before)


def test_a_store_that_was_not_taken_in_whole_is_not_there(
    lived: WrittenStore, new_address: NewAddress, tmp_path: Path
) -> None:
    state, parts = taken_out(lived.address, tmp_path / "scratch")
    address = new_address()
    short = [(part, rows[:-1] if part.dataset == "ops" else rows) for part, rows in parts]
    with pytest.raises(ArchiveError):
        take_in(address, state, short, counted(parts))
    assert not open_backend(address).exists()
    take_in(address, state, parts)
    with pytest.raises(StoreNotEmptyError):
        take_in(address, state, parts)


def test_there_is_nothing_to_take_out_where_no_store_is(new_address: NewAddress, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError), open_backend(new_address()).dump(tmp_path / "scratch"):
        pass


def test_a_sealed_store_is_read_and_not_written(written: WrittenStore) -> None:
    written.publish({"1": (A, "x")})
    backend = open_backend(written.address)
    with pytest.raises(LeaseHeldError):
        backend.seal("moved away")
    written.close()
    assert backend.seal_note() is None
    backend.seal("moved away")
    assert backend.seal_note() == "moved away"
    with closing(backend.open_reader()) as reader, closing(backend.open_store()) as store:
        for attempt in (
            lambda: WrittenStore(written.address),
            lambda: reader.create_write_checkpoint(["u/1"], {SOURCE: Lsn(6)}),
            lambda: store.submit("compact", SOURCE, "{}"),
            lambda: store.revoke(RevokedKind.USER, "u", 60.0),
            lambda: backend.seal("again"),
        ):
            with pytest.raises(SealedStoreError, match="moved away"):
                attempt()
    assert catch_up(written.address, {A: ModelBucket()}) == 2
    assert backend.unseal() == "moved away"
    assert backend.unseal() is None
    WrittenStore(written.address).close()
