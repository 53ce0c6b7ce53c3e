"""What rows of other tables give, by lookups, as every store reads it within a transaction."""

from __future__ import annotations

import pytest

from headwater.storage.contract.parts import CurrentRow, JoinedLookup
from headwater.storage.contract.reader import StoreReader
from headwater.storage.open import open_store
from headwater.storage.sql.flush import Flush
from headwater_rules.results import UNKNOWN, LookupEntry
from tests.contract.source_writer import A, SourceWriter

LONG = "x" * 5_000
FAR = f'join.b["{"k" * 3_000}"]'


@pytest.fixture
def filled(writer: SourceWriter) -> SourceWriter:
    writer.bootstrap({"1": (A, "one"), "2": (A, "two"), "3": (A, "three"), LONG: (A, "long")})
    with writer.flush() as flush:
        flush.replace_lookups(writer.table, "1", [LookupEntry("join.a[1]", "[]"), LookupEntry(FAR, '["1"]')])
        flush.replace_lookups(writer.table, "2", [LookupEntry("join.a[1]", "[]"), LookupEntry(FAR, '["2"]')])
        flush.replace_lookups(writer.table, LONG, [LookupEntry("join.a[1]", "[]")])
    return writer


def known(writer: SourceWriter) -> dict[str, JoinedLookup]:
    tables = (writer.table, writer.table + 1_000)
    return {"join.a": JoinedLookup(tables, alone=True), "join.b": JoinedLookup(tables, alone=False)}


def replace(flush: Flush, writer: SourceWriter, row_id: str, *entries: tuple[str, str]) -> None:
    flush.replace_lookups(writer.table, row_id, [LookupEntry(*entry) for entry in entries])


def test_outputs_of_stored_rows(filled: SourceWriter) -> None:
    keys = ["join.a[1]", "join.a[2]", FAR, "join.c[1]"]
    expected = {"join.a[1]": ["[]"], "join.a[2]": [], FAR: ['["1"]', '["2"]']}
    with filled.rolled_back() as flush:
        flush.watch(known(filled))
        assert flush.joined(keys) == expected
    assert open_store(filled.address).read_joined(known(filled), keys) == expected
    elsewhere = {"join.b": JoinedLookup((filled.table + 1_000,), alone=False)}
    assert open_store(filled.address).read_joined(elsewhere, [FAR]) == {FAR: []}


def test_a_transaction_sees_what_it_wrote(filled: SourceWriter) -> None:
    with filled.rolled_back() as flush:
        flush.watch(known(filled))
        replace(flush, filled, "1")
        replace(flush, filled, "3", (FAR, '["0"]'))
        assert sorted(flush.joined([FAR])[FAR]) == ['["0"]', '["2"]']
    with filled.rolled_back() as flush:
        flush.watch(known(filled))
        assert sorted(flush.joined([FAR])[FAR]) == ['["1"]', '["2"]']


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"1": []}, [FAR]),  # the least output is another one now
        ({"2": [("join.a[1]", "[]")]}, []),
        ({"3": [(FAR, '["0"]')]}, [FAR]),
        ({"3": [(FAR, '["3"]')]}, []),
        ({"3": [("join.a[1]", "[]")]}, []),  # there was one before
        ({"3": [("join.a[2]", "[]"), ("join.c[2]", "[]")]}, ["join.a[2]"]),
        ({"1": [(FAR, '["1"]')], "2": [(FAR, '["2"]')], LONG: []}, ["join.a[1]"]),  # none is left
        ({"1": [(FAR, '["2"]')], "2": [(FAR, '["1"]')], LONG: [("join.a[1]", "[]")]}, []),
    ],
)
def test_keys_that_give_another_row(
    filled: SourceWriter, changes: dict[str, list[tuple[str, str]]], expected: list[str]
) -> None:
    with filled.rolled_back() as flush:
        flush.watch(known(filled))
        for row_id, entries in changes.items():
            replace(flush, filled, row_id, *entries)
        assert sorted(flush.changed_keys()) == expected
        assert flush.changed_keys() == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([("3", [(FAR, '["0"]')]), ("3", [])], [FAR]),  # came, was seen by who read it, and went
        ([("3", [(FAR, '["0"]')]), ("3", [(FAR, '["3"]')]), ("3", [(FAR, '["0"]')])], [FAR]),
        ([("1", []), ("1", [("join.a[1]", "[]"), (FAR, '["1"]')])], [FAR]),  # went and came
        ([("3", [("join.a[2]", "[]")]), ("3", []), ("3", [("join.a[2]", "[]")])], ["join.a[2]"]),
        ([("3", [("join.a[2]", "[]")]), ("3", [])], ["join.a[2]"]),
    ],
)
def test_keys_that_change_several_times(
    filled: SourceWriter, steps: list[tuple[str, list[tuple[str, str]]]], expected: list[str]
) -> None:
    """Each step is read, as by rows that are joined, before the next one: who has read what is over has to be told."""
    with filled.rolled_back() as flush:
        flush.watch(known(filled))
        for row_id, entries in steps:
            replace(flush, filled, row_id, *entries)
            flush.joined([FAR, "join.a[2]"])
        assert sorted(flush.changed_keys()) == expected


def test_key_that_comes_to_be_as_it_was(filled: SourceWriter) -> None:
    """Of what nobody has read meanwhile, nobody has to be told."""
    with filled.rolled_back() as flush:
        flush.watch(known(filled))
        flush.joined([FAR])
        replace(flush, filled, "3", (FAR, '["0"]'))
        flush.joined(["join.a[1]"])
        replace(flush, filled, "3")
        assert flush.changed_keys() == []


def test_row_that_is_left_can_not_be_told(filled: SourceWriter) -> None:
    with filled.flush() as flush:
        replace(flush, filled, "1", ("join.a[3]", "[]"))
        replace(flush, filled, "2", ("join.a[3]", UNKNOWN))
    with filled.rolled_back() as flush:
        flush.watch(known(filled))
        replace(flush, filled, "1")
        assert flush.changed_keys() == ["join.a[3]"]


def test_rows_page_by_page(filled: SourceWriter) -> None:
    with filled.rolled_back() as flush:
        flush.put_rows(filled.table, [CurrentRow("9", 0, "line", "", None)])
        replace(flush, filled, "9", ("join.a[1]", "[]"))

        def all_under(key: str, most: int) -> list[str]:
            found: list[str] = []
            after: str | None = None
            while page := flush.rows_under(filled.table, key, after, most):
                found += [row_id for _, row_id in page]
                after = page[-1][0]
            return found

        assert all_under("join.a[1]", 2) == ["1", "2", "9", LONG]
        assert all_under(FAR, 1) == ["1", "2"]
        assert all_under("join.a[2]", 1) == []
        first = flush.rows_after(filled.table, None, 3)
        assert [row_id for _, row_id in first] == ["1", "2", "3"]
        assert [row_id for _, row_id in flush.rows_after(filled.table, first[-1][0], 3)] == ["9", LONG]


def test_lookups_of_rows_wake_no_device(filled: SourceWriter, reader: StoreReader) -> None:
    """They change with each row, and no request reads them."""
    before = reader.newest()
    assert before is not None
    with filled.flush() as flush:
        replace(flush, filled, "3", ("join.a[7]", "[]"), ("lookup.a[7]", "[]"))
    after = reader.newest()
    assert after is not None
    assert reader.touched(before.checkpoint.op_id, after.checkpoint.op_id).lookups == frozenset({"lookup.a[7]"})
