"""What every store promises of source tables, their generations and their current rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.lsn import Lsn
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import StoreReader, Touched
from headwater.storage.contract.reason import Cause, ResyncReason, stored_reason
from headwater.storage.contract.store import LeaseLostError, SourceState
from headwater.storage.open import open_store
from headwater_rules.results import LookupEntry
from tests.contract.source_writer import RELATION, SOURCE, A, B, SourceWriter, lookups, noise

WIDER = Relation(1, "public", "todos", ReplicaIdentity.DEFAULT, (*RELATION.columns, Column("note", 25, -1, False)))
OTHER = Relation(2, "public", "lists", ReplicaIdentity.FULL, (Column("name", 25, -1, False),))


def test_find_row(writer: SourceWriter) -> None:
    long = "x" * 5_000
    writer.bootstrap({"1": (A, "one"), "2": (A, "two")})
    writer.write({"2": (B, "more"), long: (A, "long")})
    backend = open_store(writer.address)
    expected = writer.rows()
    for row_id in ("1", "2", long):
        assert backend.find_row(writer.table, row_id) == expected[row_id]
    assert backend.find_row(writer.table, "3") is None
    assert backend.find_row(writer.table + 1000, "1") is None


def put_lines(writer: SourceWriter, table: int, lines: dict[str, str]) -> None:
    with writer.flush() as flush:
        flush.put_rows(table, [CurrentRow(row_id, 0, line, "", None) for row_id, line in lines.items()])


def read_all(writer: SourceWriter, table: int, rows: int = 1000) -> dict[str, CurrentRow]:
    found: dict[str, CurrentRow] = {}
    for first, end in writer.store.place_ranges(table, rows).ranges:
        for batch in open_store(writer.address).read_rows(table, first, end):
            for placed in batch:
                assert placed.row.row_id not in found, "a row stands in one range only"
                assert first <= placed.place < end
                found[placed.row.row_id] = placed.row
    return found


def test_create_tables(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    (made,) = writer.store.create_tables(writer.lease, SOURCE, [(OTHER, "f1")], ResyncReason(Cause.NEW))
    assert (made.relation, made.fingerprint, made.resync) == (OTHER, "f1", ResyncReason(Cause.NEW))
    assert [t.id for t in writer.store.tables(SOURCE)] == [writer.table, made.id]
    put_lines(writer, made.id, {"r": "v"})
    assert read_all(writer, made.id) == {"r": CurrentRow("r", 0, "v", "", None)}


def test_add_layout(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    writer.store.add_layout(writer.lease, writer.table, WIDER, "wider")
    table = writer.store.add_layout(writer.lease, writer.table, WIDER, "wider")
    assert table.layouts == (RELATION, WIDER)
    (stored,) = writer.store.tables(SOURCE)
    assert stored == table
    assert (stored.relation, stored.fingerprint) == (WIDER, "wider")
    again = writer.store.add_layout(writer.lease, writer.table, WIDER, "rebuilt")
    assert (again.layouts, again.fingerprint) == ((RELATION, WIDER), "rebuilt")


def test_mark_resync(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    for reason in (ResyncReason(Cause.LEFT_OUT, "0/1"), ResyncReason(Cause.ASKED), None):
        writer.store.mark_resync(writer.lease, [writer.table], reason)
        assert [table.resync for table in writer.store.tables(SOURCE)] == [reason]


def test_unknown_cause() -> None:
    assert stored_reason("of_tomorrow", "x") == ResyncReason(Cause.REPLACED)


def test_truncate_keeps_layouts(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    writer.store.add_layout(writer.lease, writer.table, WIDER, "wider")
    writer.store.mark_resync(writer.lease, [writer.table], ResyncReason(Cause.ATTACHED, partitions=((5, "public.p"),)))
    before = writer.table
    writer.truncate()
    (stored,) = writer.store.tables(SOURCE)
    assert stored.id == writer.table != before
    assert (stored.layouts, stored.fingerprint, stored.resync) == (
        (RELATION, WIDER),
        "wider",
        ResyncReason(Cause.ATTACHED, partitions=((5, "public.p"),)),
    )


def test_replace_table(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    writer.store.add_layout(writer.lease, writer.table, WIDER, "wider")
    checkpoint = reader.newest()
    assert checkpoint is not None
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(WIDER, "wider")])
    with open_store(writer.address).open_part(staged.id, 0, "0") as part:
        part.write([CurrentRow("one", 0, "1\tx", "", "1/1")], [("one", LookupEntry("k", "[1]"))], (), {})
        writer.store.stage(writer.lease, [part.finish()])
    assert lookups(reader, ["k"]) == {"k": []}
    assert writer.store.replace_table(writer.lease, writer.table, staged, ResyncReason(Cause.REPLACED))
    (stored,) = writer.store.tables(SOURCE)
    assert (stored.id, stored.layouts, stored.fingerprint) == (staged.id, (RELATION, WIDER), "wider")
    assert stored.resync == ResyncReason(Cause.REPLACED)
    assert lookups(reader, ["k"]) == {"k": ["[1]"]}
    after = reader.newest()
    assert after is not None
    assert reader.touched(checkpoint.checkpoint.op_id, after.checkpoint.op_id) == Touched(frozenset(), None)
    with writer.rolled_back() as flush:
        assert flush.current(staged.id, ["1", "one"]) == {"one": CurrentRow("one", 0, "1\tx", "", "1/1")}
    (late,) = writer.store.stage_tables(writer.lease, SOURCE, [(WIDER, "wider")])
    assert not writer.store.replace_table(writer.lease, writer.table, late, None)
    assert writer.store.tables(SOURCE) == [stored]


def test_stage_pages(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "f")], indexed=True)
    with open_store(writer.address).open_part(staged.id, 0, "0") as part:
        for number, row_id in enumerate(["one", "two", "one"]):
            row = CurrentRow(row_id, 0, f"{number}\tx", "", "1/1")
            part.write([row], [(row_id, LookupEntry("k", f"[{number}]"))], (), {})
            part.end_page()
        finished = part.finish()
        assert finished.pages == 3
        assert writer.store.stage_page(writer.lease, finished, 0)
        assert writer.store.stage_page(writer.lease, finished, 1)
        assert not writer.store.stage_page(writer.lease, finished, 2)
    assert lookups(reader, ["k"]) == {"k": []}
    assert writer.store.replace_table(writer.lease, writer.table, staged, ResyncReason(Cause.REPLACED))
    assert lookups(reader, ["k"]) == {"k": ["[0]", "[1]"]}
    with writer.rolled_back() as flush:
        found = flush.current(staged.id, ["1", "one", "two"])
    assert {row_id: row.line for row_id, row in found.items()} == {"one": "0\tx", "two": "1\tx"}


def test_replace_table_with_equal_ids(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "f")])
    with open_store(writer.address).open_part(staged.id, 0, "0") as part:
        part.write([CurrentRow("one", 0, line, "", None) for line in ("1\tx", "2\ty")], [], (), {})
        writer.store.stage(writer.lease, [part.finish()])
    before = writer.store.tables(SOURCE)
    assert not writer.store.replace_table(writer.lease, writer.table, staged, ResyncReason(Cause.REPLACED))
    assert writer.store.tables(SOURCE) == before
    writer.store.discard_staged(writer.lease)
    writer.write({"2": (A, "y")})


def test_drop_table(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    (made,) = writer.store.create_tables(writer.lease, SOURCE, [(OTHER, "f1")], None)
    with writer.flush() as flush:
        flush.put_rows(made.id, [CurrentRow("r", 0, "v", "", None)])
        flush.replace_lookups(made.id, "r", [LookupEntry("k", "[1]")])
    assert lookups(reader, ["k"]) == {"k": ["[1]"]}
    writer.store.drop_table(writer.lease, made.id)
    assert [t.id for t in writer.store.tables(SOURCE)] == [writer.table]
    assert lookups(reader, ["k"]) == {"k": []}


def test_move_source(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    state = SourceState(SOURCE, Lsn(5), "other", "9", 3)
    writer.store.move_source(writer.lease, state)
    assert writer.store.source_state(SOURCE) == state


def test_tables_need_the_lease(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    other = open_store(writer.address).open_writer()
    other.acquire(SOURCE, "here:1", 30.0)
    for attempt in (
        lambda: writer.store.create_tables(writer.lease, SOURCE, [(OTHER, "f1")], None),
        lambda: writer.store.add_layout(writer.lease, writer.table, WIDER, "wider"),
        lambda: writer.store.mark_resync(writer.lease, [writer.table], ResyncReason(Cause.ASKED)),
        lambda: writer.store.drop_table(writer.lease, writer.table),
        lambda: writer.store.move_source(writer.lease, writer.state()),
        lambda: writer.store.stage_tables(writer.lease, SOURCE, [(OTHER, "f1")]),
        lambda: writer.store.retire(writer.lease, ["todos.1"], 10),
    ):
        with pytest.raises(LeaseLostError):
            attempt()
    assert [(t.id, t.layouts, t.resync) for t in other.tables(SOURCE)] == [(writer.table, (RELATION,), None)]
    other.close()


def test_place_ranges(writer: SourceWriter) -> None:
    rows = {str(i): (A, f"text {i}") for i in range(3000)}
    writer.bootstrap(rows, parts=2)
    writer.write({str(i): None for i in range(0, 3000, 3)})
    writer.write({str(i): (A, "changed") for i in range(1, 3000, 30)})
    expected = {row_id: row.line for row_id, row in writer.rows().items()}
    assert len(expected) == 2000
    for size in (1, 300, 10_000):
        if size > 1:
            found = read_all(writer, writer.table, size)
            assert {row_id: row.line for row_id, row in found.items()} == expected
        ranges, number = writer.store.place_ranges(writer.table, size)
        assert all(first < end for first, end in ranges)
        assert number == 2000
        bounds = writer.store.place_bounds(writer.table)
        assert bounds is not None
        assert ranges[0][0] == bounds[0] <= bounds[1] < ranges[-1][1]
    assert len(writer.store.place_ranges(writer.table, 300).ranges) >= 5


def test_table_without_rows_has_no_places(writer: SourceWriter) -> None:
    writer.bootstrap({})
    (table,) = writer.store.create_tables(writer.lease, SOURCE, [(WIDER, "wider")], None)
    assert writer.store.place_bounds(table.id) is None


def test_places_stay(writer: SourceWriter) -> None:
    writer.bootstrap({str(i): (A, "x") for i in range(50)})

    def places() -> dict[str, int]:
        ranges = writer.store.place_ranges(writer.table, 1000).ranges
        return {
            placed.row.row_id: placed.place
            for first, end in ranges
            for batch in open_store(writer.address).read_rows(writer.table, first, end)
            for placed in batch
        }

    before = places()
    writer.write({str(i): (A, "changed") for i in range(0, 50, 2)})
    assert places() == before


def test_empty_table(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    gone = writer.table
    writer.truncate()
    assert writer.store.place_ranges(writer.table, 100) == ((), 0)
    writer.store.close()
    assert list(open_store(writer.address).read_rows(gone + 1000, 0, 100)) == []


def test_rows_are_found_by_their_lines(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    lines = {"r1": "a\tb", "r2": "a\tb", "r3": "c\\\\d\t\\N", "r4": "e"}
    put_lines(writer, writer.table, lines)
    with writer.rolled_back() as flush:
        found = flush.rows_with_lines(writer.table, ["a\tb", "c\\\\d\t\\N", "nobody"])
    assert {line: sorted(ids) for line, ids in found.items()} == {
        "a\tb": ["r1", "r2"], "c\\\\d\t\\N": ["r3"], "nobody": [],
    }  # fmt: skip


def test_copies(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    put_lines(writer, writer.table, {"c0ffee": "x", "c0ffee#2": "x", "c0ffee#10": "x", "c0ffef": "y", "c0ffe": "z"})
    with writer.rolled_back() as flush:
        assert sorted(flush.copies(writer.table, "c0ffee")) == ["c0ffee", "c0ffee#10", "c0ffee#2"]
        assert flush.copies(writer.table, "dec0de") == []


AWKWARD = ["", "a\tb", "back\\slash", "line\nend", "\\N", "ünïcödé 🎉", "quote\"'", "x" * 20_000, "é" * 5_000, "{1,2}"]


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_rows_come_back_as_they_were_put(writer: SourceWriter, many: bool) -> None:
    writer.bootstrap({"1": (A, "x")})
    texts = [*AWKWARD, *(str(i) for i in range(1000 if many else 3))]
    # A line is COPY text, where a line end is escaped already
    rows = [
        CurrentRow(f"id {text}", n % 3, text.replace("\n", "\\n"), f'[[{n},2,"t",{n}]]', text if n % 2 else None)
        for n, text in enumerate(texts)
    ]
    with writer.flush() as flush:
        flush.put_rows(writer.table, rows)
        flush.put_rows(writer.table, [row._replace(subkey="again") for row in rows[:2]])
    expected = {row.row_id: row for row in [*rows, *(row._replace(subkey="again") for row in rows[:2])]}
    with writer.rolled_back() as flush:
        assert flush.current(writer.table, [*expected, "nobody"]) == expected
        members = {row_id: (text, subkey) for row_id, text, subkey in flush.table_members(writer.table)}
        assert members["id \\N"] == (expected["id \\N"].members, expected["id \\N"].subkey)
        flush.delete_rows(writer.table, list(expected)[:-2])
        assert set(flush.current(writer.table, list(expected))) == set(list(expected)[-2:])
    found = read_all(writer, writer.table)
    assert {row_id: found[row_id] for row_id in expected} == expected


def test_long_lookups(writer: SourceWriter, reader: StoreReader) -> None:
    writer.bootstrap({"1": (A, "x")})
    long_id, long_key = noise(30_000), noise(20_000)
    with writer.flush() as flush:
        flush.put_rows(writer.table, [CurrentRow(long_id, 0, "x", "", None)])
        flush.replace_lookups(writer.table, long_id, [LookupEntry(long_key, "[1]"), LookupEntry(long_key + "2", "[2]")])
        assert flush.lookup_entries(writer.table, long_id) == [
            LookupEntry(long_key, "[1]"), LookupEntry(long_key + "2", "[2]"),
        ]  # fmt: skip
    assert lookups(reader, [long_key, long_key + "3"]) == {long_key: ["[1]"], long_key + "3": []}
    with writer.flush() as flush:
        flush.replace_lookups(writer.table, long_id, [])
    assert lookups(reader, [long_key]) == {long_key: []}


def test_replaced_lookups(writer: SourceWriter, new_writer: Callable[..., SourceWriter]) -> None:
    writer.bootstrap({"1": (A, "x")})
    with writer.rolled_back() as flush:
        for entries in ([LookupEntry("k", "[1]")], [LookupEntry("k", "[2]"), LookupEntry("m", "[3]")], []):
            flush.replace_lookups(writer.table, "1", entries)
            assert flush.lookup_entries(writer.table, "1") == entries
