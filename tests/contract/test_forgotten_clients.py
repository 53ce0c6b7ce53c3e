"""A user who makes up client ids: the store keeps the write checkpoints of so many, and one for all that it forgot."""

from __future__ import annotations

import pytest

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reader import StoreReader, WriteCheckpoint
from headwater.storage.sql import write_checkpoints
from headwater.storage.sql.write_checkpoints import CLIENTS_KEPT, MAX_ID
from tests.contract.source_writer import SOURCE, SourceWriter


def made_up(user: str, count: int, name: str = "made-up") -> list[str]:
    return [f"{user}/{name}-{number}" for number in range(count)]


def kept(reader: StoreReader, user: str) -> set[str]:
    return {write.key for write in reader.write_checkpoints(0) if write.key.startswith(f"{user}/")}


def known(reader: StoreReader, key: str) -> WriteCheckpoint:
    write = reader.write_checkpoint(key)
    assert write is not None
    return write


def test_newest_clients_are_kept(reader: StoreReader) -> None:
    others = ["u", "u0/phone", "u%25/phone", "t/phone", "u%2Fmade-up"]
    reader.create_write_checkpoint([*others, "u/phone", "u/tablet"], {SOURCE: Lsn(5)})
    reader.create_write_checkpoint(made_up("u", CLIENTS_KEPT - 2), {SOURCE: Lsn(5)})
    assert {"u/phone", "u/tablet"} <= kept(reader, "u"), "it is at the limit"
    reader.create_write_checkpoint(["u/phone"], {SOURCE: Lsn(5)})
    for number in range(3):
        reader.create_write_checkpoint([f"u/later-{number}"], {SOURCE: Lsn(5)})
        reader.request_write_checkpoint({f"u/chosen-{number}": 7}, {SOURCE: Lsn(5)})
    assert len(kept(reader, "u")) == CLIENTS_KEPT
    assert "u/tablet" not in kept(reader, "u")
    assert "u/phone" in kept(reader, "u"), "which wrote since"
    assert all(known(reader, key).id == 1 for key in others), "other users lose nothing"


def test_wait_for_a_forgotten_client(reader: StoreReader) -> None:
    for lsn in (5, 50, 20):
        reader.create_write_checkpoint(["u/phone"], {SOURCE: Lsn(lsn)})
    reader.create_write_checkpoint(made_up("u", CLIENTS_KEPT), {SOURCE: Lsn(40)})
    told = known(reader, "u/phone")
    assert told.key == "u/phone"
    assert told.id >= 3, "it is what the device waits for"
    assert told.lsns == {SOURCE: Lsn(50)}, "and is not there sooner"
    assert known(reader, "u/new").id == told.id
    assert reader.write_checkpoint("other/phone") is None
    assert reader.write_checkpoint("u") is None
    assert known(reader, "u/made-up-7").id == 1, "who is not forgotten has his own"


def test_stand_in_never_goes_back(reader: StoreReader) -> None:
    before, lsns = 0, dict[str, Lsn]()
    for number, lsn in enumerate((60, 50, 70, 10)):
        reader.create_write_checkpoint(made_up("u", CLIENTS_KEPT + 1, f"wave-{number}"), {SOURCE: Lsn(lsn)})
        told = known(reader, "u/phone")
        assert told.id > before
        assert told.lsns[SOURCE] >= lsn
        before, lsns = told.id, dict(told.lsns)
    assert lsns == {SOURCE: Lsn(70)}


def test_ids_after_the_stand_in(reader: StoreReader) -> None:
    reader.create_write_checkpoint(["u/phone", "u/tablet"], {SOURCE: Lsn(5)})
    reader.create_write_checkpoint(made_up("u", CLIENTS_KEPT), {SOURCE: Lsn(5)})
    told = known(reader, "u/phone").id
    assert reader.create_write_checkpoint(["u/phone"], {SOURCE: Lsn(6)}) == {"u/phone": told + 1}
    assert known(reader, "u/phone").lsns == {SOURCE: Lsn(6)}
    stored = reader.request_write_checkpoint({"u/tablet": 1}, {SOURCE: Lsn(7)})
    assert stored["u/tablet"] > told, "also where the client chose a lower one"
    assert known(reader, "u/tablet").lsns == {SOURCE: Lsn(7)}
    assert reader.request_write_checkpoint({"u/web": 2**60}, {SOURCE: Lsn(7)}) == {"u/web": 2**60}


def test_stand_in_for_a_chosen_id(reader: StoreReader) -> None:
    reader.request_write_checkpoint({"u/phone": 10_000_000}, {SOURCE: Lsn(5)})
    waits_for = reader.create_write_checkpoint(["u/phone"], {SOURCE: Lsn(6)})["u/phone"]
    reader.create_write_checkpoint(made_up("u", CLIENTS_KEPT), {SOURCE: Lsn(7)})
    assert known(reader, "u/phone").id >= waits_for > 10_000_000
    assert reader.create_write_checkpoint(["u/phone"], {SOURCE: Lsn(8)})["u/phone"] > waits_for


def test_highest_id(reader: StoreReader) -> None:
    reader.request_write_checkpoint({"u/phone": MAX_ID - 1}, {SOURCE: Lsn(5)})
    reader.create_write_checkpoint(["u/phone"], {SOURCE: Lsn(6)})
    reader.create_write_checkpoint(made_up("u", CLIENTS_KEPT), {SOURCE: Lsn(7)})
    assert reader.create_write_checkpoint(["u/new"], {SOURCE: Lsn(8)}) == {"u/new": MAX_ID}
    assert reader.create_write_checkpoint(["u/new"], {SOURCE: Lsn(9)}) == {"u/new": MAX_ID}


def test_forgotten_in_steps(reader: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_checkpoints, "FORGOTTEN_AT_ONCE", 2)
    reader.create_write_checkpoint(made_up("u", CLIENTS_KEPT + 4), {SOURCE: Lsn(5)})
    counts = [len(kept(reader, "u"))]
    for number in range(3):
        reader.create_write_checkpoint([f"u/later-{number}"], {SOURCE: Lsn(5)})
        counts.append(len(kept(reader, "u")))
    assert counts == [CLIENTS_KEPT + 2, CLIENTS_KEPT + 1, CLIENTS_KEPT, CLIENTS_KEPT]


def test_no_stand_in_for_a_chosen_id(reader: StoreReader) -> None:
    reader.request_write_checkpoint(dict.fromkeys(made_up("u", CLIENTS_KEPT + 5), 2**62), {SOURCE: Lsn(5)})
    assert len(kept(reader, "u")) == CLIENTS_KEPT
    assert reader.write_checkpoint("u/phone") is None, "it asks again by itself"


def test_follower_misses_nothing(reader: StoreReader) -> None:
    reader.create_write_checkpoint(made_up("u", CLIENTS_KEPT), {SOURCE: Lsn(5)})
    seen = max(write.seq for write in reader.write_checkpoints(0))
    for key in ("u/phone", "v/phone", "u/tablet", "v/tablet"):
        reader.create_write_checkpoint([key], {SOURCE: Lsn(5)})
        news = [write for write in reader.write_checkpoints(seen) if write.key == key]
        assert len(news) == 1
        seen = max(write.seq for write in reader.write_checkpoints(seen))


def test_stand_in_and_lost_position(writer: SourceWriter, reader: StoreReader) -> None:
    reader.create_write_checkpoint(made_up("u", CLIENTS_KEPT + 1), {SOURCE: Lsn(50)})
    writer.store.rewind_write_checkpoints(SOURCE, Lsn(40))
    assert known(reader, "u/phone").lsns == {SOURCE: Lsn(40)}
