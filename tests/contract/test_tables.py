"""What every store promises of source tables, their generations and their current rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.lsn import Lsn
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import StoreReader, Touched
from headwater.storage.contract.reason import Cause, ResyncReason, stored_reason
from headwater.storage.contract.store import LeaseLostError, SourceProgress, SourceState
from headwater.storage.open import open_store
from headwater_rules.results import LookupEntry
from tests.contract.source_writer import RELATION, SOURCE, A, B, SourceWriter, lookups, noise

WIDER = Relation(1, "public", "todos", ReplicaIdentity.DEFAULT, (*RELATION.columns, Column("note", 25, -1, False)))
OTHER = Relation(2, "public", "lists", ReplicaIdentity.FULL, (Column("name", 25, -1, False),))


def test_a_row_is_found_by_its_id(world: SourceWriter) -> None:
    long = "x" * 5_000
    world.bootstrap({"1": (A, "one"), "2": (A, "two")})
    world.write({"2": (B, "more"), long: (A, "long")})
    backend = open_store(world.address)
    expected = world.rows()
    for row_id in ("1", "2", long):
        assert backend.find_row(world.table, row_id) == expected[row_id]
    assert backend.find_row(world.table, "3") is None
    assert backend.find_row(world.table + 1000, "1") is None


def put_lines(world: SourceWriter, table: int, lines: dict[str, str]) -> None:
    flush = world.store.begin(world.lease)
    flush.put_rows(table, [CurrentRow(row_id, 0, line, "", None) for row_id, line in lines.items()])
    flush.commit(SOURCE, SourceProgress(Lsn(world.lsn)))


def read_all(world: SourceWriter, table: int, rows: int = 1000) -> dict[str, CurrentRow]:
    found: dict[str, CurrentRow] = {}
    for first, end in world.store.place_ranges(table, rows).ranges:
        for batch in open_store(world.address).read_rows(table, first, end):
            for placed in batch:
                assert placed.row.row_id not in found, "a row stands in one range only"
                assert first <= placed.place < end
                found[placed.row.row_id] = placed.row
    return found


def test_a_new_table_is_active_at_once_with_the_reason_of_its_resync(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    (made,) = world.store.create_tables(world.lease, SOURCE, [(OTHER, "f1")], ResyncReason(Cause.NEW))
    assert (made.relation, made.fingerprint, made.resync) == (OTHER, "f1", ResyncReason(Cause.NEW))
    assert [t.id for t in world.store.tables(SOURCE)] == [world.table, made.id]
    put_lines(world, made.id, {"r": "v"})
    assert read_all(world, made.id) == {"r": CurrentRow("r", 0, "v", "", None)}


def test_a_layout_is_added_once_and_the_newest_is_the_relation(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    world.store.add_layout(world.lease, world.table, WIDER, "wider")
    table = world.store.add_layout(world.lease, world.table, WIDER, "wider")
    assert table.layouts == (RELATION, WIDER)
    (stored,) = world.store.tables(SOURCE)
    assert stored == table
    assert (stored.relation, stored.fingerprint) == (WIDER, "wider")
    again = world.store.add_layout(world.lease, world.table, WIDER, "rebuilt")
    assert (again.layouts, again.fingerprint) == ((RELATION, WIDER), "rebuilt")


def test_a_resync_is_marked_and_unmarked(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    for reason in (ResyncReason(Cause.LEFT_OUT, "0/1"), ResyncReason(Cause.ASKED), None):
        world.store.mark_resync(world.lease, [world.table], reason)
        assert [table.resync for table in world.store.tables(SOURCE)] == [reason]


def test_a_cause_of_another_version_takes_nothing_for_granted() -> None:
    assert stored_reason("of_tomorrow", "x") == ResyncReason(Cause.REPLACED)


def test_truncate_keeps_the_layouts_and_the_reason_of_a_resync(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    world.store.add_layout(world.lease, world.table, WIDER, "wider")
    world.store.mark_resync(world.lease, [world.table], ResyncReason(Cause.ATTACHED, partitions=((5, "public.p"),)))
    before = world.table
    world.truncate()
    (stored,) = world.store.tables(SOURCE)
    assert stored.id == world.table != before
    assert (stored.layouts, stored.fingerprint, stored.resync) == (
        (RELATION, WIDER),
        "wider",
        ResyncReason(Cause.ATTACHED, partitions=((5, "public.p"),)),
    )


def test_a_table_is_replaced_by_one_whose_rows_have_other_ids(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    world.store.add_layout(world.lease, world.table, WIDER, "wider")
    checkpoint = reader.newest()
    assert checkpoint is not None
    (staged,) = world.store.stage_tables(world.lease, SOURCE, [(WIDER, "wider")])
    with open_store(world.address).open_part(staged.id, 0, "0") as part:
        part.write([CurrentRow("one", 0, "1\tx", "", "1/1")], [("one", LookupEntry("k", "[1]"))], (), {})
        world.store.stage(world.lease, [part.finish()])
    assert lookups(reader, ["k"]) == {"k": []}
    assert world.store.replace_table(world.lease, world.table, staged, ResyncReason(Cause.REPLACED))
    (stored,) = world.store.tables(SOURCE)
    assert (stored.id, stored.layouts, stored.fingerprint) == (staged.id, (RELATION, WIDER), "wider")
    assert stored.resync == ResyncReason(Cause.REPLACED)
    assert lookups(reader, ["k"]) == {"k": ["[1]"]}
    after = reader.newest()
    assert after is not None
    assert reader.touched(checkpoint.checkpoint.op_id, after.checkpoint.op_id) == Touched(frozenset(), None)
    flush = world.store.begin(world.lease)
    assert flush.current(staged.id, ["1", "one"]) == {"one": CurrentRow("one", 0, "1\tx", "", "1/1")}
    flush.rollback()
    (late,) = world.store.stage_tables(world.lease, SOURCE, [(WIDER, "wider")])
    assert not world.store.replace_table(world.lease, world.table, late, None)
    assert world.store.tables(SOURCE) == [stored]


def test_a_generation_is_staged_by_pages_until_two_rows_have_one_id(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    (staged,) = world.store.stage_tables(world.lease, SOURCE, [(RELATION, "f")], indexed=True)
    with open_store(world.address).open_part(staged.id, 0, "0") as part:
        for number, row_id in enumerate(["one", "two", "one"]):
            row = CurrentRow(row_id, 0, f"{number}\tx", "", "1/1")
            part.write([row], [(row_id, LookupEntry("k", f"[{number}]"))], (), {})
            part.end_page()
        finished = part.finish()
        assert finished.pages == 3
        assert world.store.stage_page(world.lease, finished, 0)
        assert world.store.stage_page(world.lease, finished, 1)
        assert not world.store.stage_page(world.lease, finished, 2)
    assert lookups(reader, ["k"]) == {"k": []}
    assert world.store.replace_table(world.lease, world.table, staged, ResyncReason(Cause.REPLACED))
    assert lookups(reader, ["k"]) == {"k": ["[0]", "[1]"]}
    flush = world.store.begin(world.lease)
    found = flush.current(staged.id, ["1", "one", "two"])
    flush.rollback()
    assert {row_id: row.line for row_id, row in found.items()} == {"one": "0\tx", "two": "1\tx"}


def test_a_table_is_not_replaced_by_one_with_equal_ids(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    (staged,) = world.store.stage_tables(world.lease, SOURCE, [(RELATION, "f")])
    with open_store(world.address).open_part(staged.id, 0, "0") as part:
        part.write([CurrentRow("one", 0, line, "", None) for line in ("1\tx", "2\ty")], [], (), {})
        world.store.stage(world.lease, [part.finish()])
    before = world.store.tables(SOURCE)
    assert not world.store.replace_table(world.lease, world.table, staged, ResyncReason(Cause.REPLACED))
    assert world.store.tables(SOURCE) == before
    world.store.discard_staged(world.lease)
    world.write({"2": (A, "y")})


def test_a_dropped_table_is_gone_with_its_lookups(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    (made,) = world.store.create_tables(world.lease, SOURCE, [(OTHER, "f1")], None)
    flush = world.store.begin(world.lease)
    flush.put_rows(made.id, [CurrentRow("r", 0, "v", "", None)])
    flush.replace_lookups(made.id, "r", [LookupEntry("k", "[1]")])
    flush.commit(SOURCE, SourceProgress(Lsn(world.lsn)))
    assert lookups(reader, ["k"]) == {"k": ["[1]"]}
    world.store.drop_table(world.lease, made.id)
    assert [t.id for t in world.store.tables(SOURCE)] == [world.table]
    assert lookups(reader, ["k"]) == {"k": []}


def test_a_source_moves_to_another_slot(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    state = SourceState(SOURCE, Lsn(5), "other", "9", 3)
    world.store.move_source(world.lease, state)
    assert world.store.source_state(SOURCE) == state


def test_nothing_of_this_is_done_for_who_lost_the_lease(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    other = open_store(world.address).open_writer()
    other.acquire(SOURCE, "here:1", 30.0)
    for attempt in (
        lambda: world.store.create_tables(world.lease, SOURCE, [(OTHER, "f1")], None),
        lambda: world.store.add_layout(world.lease, world.table, WIDER, "wider"),
        lambda: world.store.mark_resync(world.lease, [world.table], ResyncReason(Cause.ASKED)),
        lambda: world.store.drop_table(world.lease, world.table),
        lambda: world.store.move_source(world.lease, world.state()),
        lambda: world.store.stage_tables(world.lease, SOURCE, [(OTHER, "f1")]),
        lambda: world.store.retire(world.lease, ["todos.1"], 10),
    ):
        with pytest.raises(LeaseLostError):
            attempt()
    assert [(t.id, t.layouts, t.resync) for t in other.tables(SOURCE)] == [(world.table, (RELATION,), None)]
    other.close()


def test_ranges_of_places_hold_every_row_once(world: SourceWriter) -> None:
    rows = {str(i): (A, f"text {i}") for i in range(3000)}
    world.bootstrap(rows, parts=2)
    world.write({str(i): None for i in range(0, 3000, 3)})
    world.write({str(i): (A, "changed") for i in range(1, 3000, 30)})
    expected = {row_id: row.line for row_id, row in world.rows().items()}
    assert len(expected) == 2000
    for size in (1, 300, 10_000):
        if size > 1:
            found = read_all(world, world.table, size)
            assert {row_id: row.line for row_id, row in found.items()} == expected
        ranges, number = world.store.place_ranges(world.table, size)
        assert all(first < end for first, end in ranges)
        assert number == 2000
    assert len(world.store.place_ranges(world.table, 300).ranges) >= 5


def test_a_place_stays_with_its_row_when_the_row_changes(world: SourceWriter) -> None:
    world.bootstrap({str(i): (A, "x") for i in range(50)})

    def places() -> dict[str, int]:
        ranges = world.store.place_ranges(world.table, 1000).ranges
        return {
            placed.row.row_id: placed.place
            for first, end in ranges
            for batch in open_store(world.address).read_rows(world.table, first, end)
            for placed in batch
        }

    before = places()
    world.write({str(i): (A, "changed") for i in range(0, 50, 2)})
    assert places() == before


def test_an_empty_table_and_one_that_is_gone_have_no_rows(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    gone = world.table
    world.truncate()
    assert world.store.place_ranges(world.table, 100) == ((), 0)
    world.store.close()
    assert list(open_store(world.address).read_rows(gone + 1000, 0, 100)) == []


def test_rows_are_found_by_their_lines(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    lines = {"r1": "a\tb", "r2": "a\tb", "r3": "c\\\\d\t\\N", "r4": "e"}
    put_lines(world, world.table, lines)
    flush = world.store.begin(world.lease)
    found = flush.rows_with_lines(world.table, ["a\tb", "c\\\\d\t\\N", "nobody"])
    flush.rollback()
    assert {line: sorted(ids) for line, ids in found.items()} == {
        "a\tb": ["r1", "r2"], "c\\\\d\t\\N": ["r3"], "nobody": [],
    }  # fmt: skip


def test_copies_of_a_row_are_found_by_their_content(world: SourceWriter) -> None:
    world.bootstrap({"1": (A, "x")})
    put_lines(world, world.table, {"c0ffee": "x", "c0ffee#2": "x", "c0ffee#10": "x", "c0ffef": "y", "c0ffe": "z"})
    flush = world.store.begin(world.lease)
    assert sorted(flush.copies(world.table, "c0ffee")) == ["c0ffee", "c0ffee#10", "c0ffee#2"]
    assert flush.copies(world.table, "dec0de") == []
    flush.rollback()


AWKWARD = ["", "a\tb", "back\\slash", "line\nend", "\\N", "ünïcödé 🎉", "quote\"'", "x" * 20_000, "é" * 5_000, "{1,2}"]


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_rows_come_back_as_they_were_put(world: SourceWriter, many: bool) -> None:
    world.bootstrap({"1": (A, "x")})
    texts = [*AWKWARD, *(str(i) for i in range(1000 if many else 3))]
    # A line is COPY text, where a line end is escaped already
    rows = [
        CurrentRow(f"id {text}", n % 3, text.replace("\n", "\\n"), f'[[{n},2,"t",{n}]]', text if n % 2 else None)
        for n, text in enumerate(texts)
    ]
    flush = world.store.begin(world.lease)
    flush.put_rows(world.table, rows)
    flush.put_rows(world.table, [row._replace(subkey="again") for row in rows[:2]])
    flush.commit(SOURCE, SourceProgress(Lsn(world.lsn)))
    expected = {row.row_id: row for row in [*rows, *(row._replace(subkey="again") for row in rows[:2])]}
    flush = world.store.begin(world.lease)
    assert flush.current(world.table, [*expected, "nobody"]) == expected
    members = {row_id: (text, subkey) for row_id, text, subkey in flush.table_members(world.table)}
    assert members["id \\N"] == (expected["id \\N"].members, expected["id \\N"].subkey)
    flush.delete_rows(world.table, list(expected)[:-2])
    assert set(flush.current(world.table, list(expected))) == set(list(expected)[-2:])
    flush.rollback()
    found = read_all(world, world.table)
    assert {row_id: found[row_id] for row_id in expected} == expected


def test_lookups_of_any_length_follow_their_rows(world: SourceWriter, reader: StoreReader) -> None:
    world.bootstrap({"1": (A, "x")})
    long_id, long_key = noise(30_000), noise(20_000)
    flush = world.store.begin(world.lease)
    flush.put_rows(world.table, [CurrentRow(long_id, 0, "x", "", None)])
    flush.replace_lookups(world.table, long_id, [LookupEntry(long_key, "[1]"), LookupEntry(long_key + "2", "[2]")])
    assert flush.lookup_entries(world.table, long_id) == [
        LookupEntry(long_key, "[1]"), LookupEntry(long_key + "2", "[2]"),
    ]  # fmt: skip
    flush.commit(SOURCE, SourceProgress(Lsn(world.lsn)))
    assert lookups(reader, [long_key, long_key + "3"]) == {long_key: ["[1]"], long_key + "3": []}
    flush = world.store.begin(world.lease)
    flush.replace_lookups(world.table, long_id, [])
    flush.commit(SOURCE, SourceProgress(Lsn(world.lsn)))
    assert lookups(reader, [long_key]) == {long_key: []}


def test_what_a_flush_replaced_it_sees_itself(world: SourceWriter, open_world: Callable[..., SourceWriter]) -> None:
    world.bootstrap({"1": (A, "x")})
    flush = world.store.begin(world.lease)
    for entries in ([LookupEntry("k", "[1]")], [LookupEntry("k", "[2]"), LookupEntry("m", "[3]")], []):
        flush.replace_lookups(world.table, "1", entries)
        assert flush.lookup_entries(world.table, "1") == entries
    flush.rollback()
