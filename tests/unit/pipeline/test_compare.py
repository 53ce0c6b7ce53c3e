"""A comparison finds every row that is wrong, however many there are and wherever they meet: no two hide each other."""

from __future__ import annotations

import random
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headwater.pipeline.compare
import headwater.pipeline.jobs
import headwater.pipeline.keyed
import headwater.pipeline.snapshot
from headwater.bulk.contract import CompareJob, CompareTable, Difference
from headwater.decode.types import TypeCatalog
from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import ROW_LIMIT, stored_line
from headwater.oplog.row_id import content_id
from headwater.pipeline.jobs import find_differences
from headwater.pipeline.keyed import DividedSides, KeyedSides
from headwater.pipeline.snapshot import Partition
from headwater.source.catalog.published import PublishedTable
from headwater.source.catalog.read import Leaf
from headwater.source.connect import SourceSettings
from headwater.source.rows.copy import BATCH_ROWS
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.parts import CurrentRow, PlacedRow
from headwater.storage.contract.store import StoredTable
from tests.support.local_bulk import LocalRun

IDENTITIES = {"keyed": ReplicaIdentity.DEFAULT, "full": ReplicaIdentity.FULL, "nothing": ReplicaIdentity.NOTHING}
FLAWED = "flawed"


@dataclass(frozen=True)
class Copies:
    """One row, or content: how many copies of it the source has, and which of the store's are flawed."""

    source: int
    store: Sequence[bool]

    @property
    def differ(self) -> bool:
        return self.source != len(self.store) or any(self.store)


@dataclass
class TwoSides:
    """A source and a store in memory, read in place of real ones."""

    identity: str
    monkeypatch: pytest.MonkeyPatch
    directory: str
    rows: Sequence[Copies] = ()
    found: list[Difference] = field(default_factory=list)

    def __post_init__(self) -> None:
        patch, module = self.monkeypatch.setattr, headwater.pipeline.compare
        patch(module, "read_lines", lambda *_: self._source())
        patch(module, "open_store", lambda _: SimpleNamespace(read_rows=lambda *_: self._store()))
        patch(module, "bind_layouts", lambda *_: [SimpleNamespace(has_clock=False, has_joins=False)])
        patch(module, "_in_right_buckets", lambda _bounds, _layouts, row, _times: row.members != FLAWED)

    def line(self, number: int) -> str:
        return f"{number}\tbody {number}"

    def key(self, number: int) -> str:
        return str(number) if self.identity == "keyed" else content_id(self.line(number))

    def _source(self) -> Iterator[list[str]]:
        lines = [self.line(number) for number, row in enumerate(self.rows) for _ in range(row.source)]
        yield from (lines[at : at + BATCH_ROWS] for at in range(0, len(lines), BATCH_ROWS))

    def _store(self) -> Iterator[list[PlacedRow]]:
        rows = [
            PlacedRow(number, self._stored(number, flawed))
            for number, row in enumerate(self.rows)
            for flawed in row.store
        ]
        yield from (rows[at : at + BATCH_ROWS] for at in range(0, len(rows), BATCH_ROWS))

    def _stored(self, number: int, flawed: bool) -> CurrentRow:
        key, line = self.key(number), self.line(number)
        if flawed and self.identity == "keyed" and number % 2:
            return CurrentRow(key, 0, f"{line} of old", "", None)
        return CurrentRow(key, 0, line, FLAWED if flawed else "", None)

    def check(self) -> None:
        """A comparison finds the rows that differ and no others, whether the table is taken for small or not."""
        expected = sorted(self.key(number) for number, row in enumerate(self.rows) if row.differ)
        for largest in (0, 1 << 30):
            self.monkeypatch.setattr(headwater.pipeline.snapshot, "SMALLEST_PAGES", largest)
            assert self._differing() == expected

    def _differing(self) -> list[str]:
        columns = (Column("id", 23, -1, self.identity == "keyed"), Column("body", 25, -1, False))
        relation = Relation(1, "public", "items", IDENTITIES[self.identity], columns)
        leaf = Leaf(1, "public", "items", 1, len(self.rows) // 60 + 1, len(self.rows))
        published = PublishedTable(relation, (leaf,), None, "", "")
        stored = StoredTable(1, "default", (relation,), "")
        source = SourceSettings(host="", database="", user="")
        tables = (CompareTable(published, stored, ((0, len(self.rows) + 1),), len(self.rows)),)
        job = CompareJob(
            source=source, snapshot="", tables=tables, plans=(), types=TypeCatalog(), keys=StoreKeys(b""),
            store=SqliteAddress(self.directory), directory=self.directory,
        )  # fmt: skip
        parts = [Partition(published, leaf, 0, None, 1)]
        self.found.clear()
        find_differences(LocalRun(job, "comparison", threading.Event()), job, parts, self.found.extend)
        return sorted(difference.key for difference in self.found)


@pytest.fixture(params=IDENTITIES)
def sides(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> TwoSides:
    """Once for each way to tell rows apart."""
    return TwoSides(request.param, monkeypatch, str(tmp_path))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # every example sets all of it
@given(st.data())
def test_any_multiset_of_flaws(sides: TwoSides, data: st.DataObject) -> None:
    """All rows share one partition of the hash space, where what cancels would."""
    most = 1 if sides.identity == "keyed" else 4
    copies = st.builds(Copies, st.integers(0, most), st.lists(st.booleans(), max_size=most))
    sides.rows = data.draw(st.lists(copies, max_size=12))
    sides.monkeypatch.setattr(headwater.pipeline.jobs, "_FEWEST_PARTITIONS", 1)
    sides.check()


@pytest.mark.parametrize("rows", [20_000, pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(600)])])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_flaws_of_a_large_table(sides: TwoSides, rows: int, share: float) -> None:
    dice = random.Random(rows)
    most = 1 if sides.identity == "keyed" else 3
    alike = rows // (1 if most == 1 else 2)
    counts = [dice.randint(1, most) for _ in range(alike)]
    sides.rows = [Copies(count, [dice.random() < share for _ in range(count)]) for count in counts]
    sides.check()
    assert sides.found


def test_table_larger_than_expected(sides: TwoSides) -> None:
    sides.monkeypatch.setattr(headwater.pipeline.compare, "MOST_CHARACTERS", 10_000)
    sides.rows = [Copies(1, [number % 7 == 0]) for number in range(1000)]
    sides.check()


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("xyz")), max_size=8),
    st.dictionaries(st.sampled_from("abcde"), st.tuples(st.sampled_from("xyz"), st.booleans())),
)
def test_both_sides_in_one_process(source: list[tuple[str, str]], stored: dict[str, tuple[str, bool]]) -> None:
    sides, lines = KeyedSides(), dict(source)
    sides.of_source([key for key, _ in source], [line for _, line in source])
    sides.of_store([(key, line, "\0flawed" if flawed else "") for key, (line, flawed) in stored.items()])
    there = {Difference(7, key, line, 1) for key, line in lines.items() if stored.get(key) != (line, False)}
    gone = {Difference(7, key, line, 0) for key, (line, _) in stored.items() if key not in lines}
    assert set(sides.differences(7)) == there | gone
    assert sides.twice == {key for key, _ in source if [each for each, _ in source].count(key) > 1}


def test_row_that_is_too_large_on_both_sides_does_not_differ() -> None:
    large, sides = "x" * (ROW_LIMIT + 1), KeyedSides()
    sides.of_source(["a", "b", "c"], [large, large, "small"])
    sides.of_store([("a", stored_line(large), ""), ("b", "small", ""), ("c", stored_line(large), "")])
    assert [difference.key for difference in sides.differences(1)] == ["b", "c"]


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz")), max_size=12),
    st.dictionaries(st.sampled_from("abcdefgh"), st.tuples(st.sampled_from("xyz"), st.booleans())),
    st.integers(0, 2_500),
    st.booleans(),
)
def test_what_does_not_fit_into_memory(
    source: list[tuple[str, str]], stored: dict[str, tuple[str, bool]], limit: int, small: bool
) -> None:
    """On disk, a comparison finds what it finds in memory, wherever it has to go there."""
    rows = [(key, line, "\0flawed" if flawed else "") for key, (line, flawed) in stored.items()]
    whole = KeyedSides()
    whole.of_source([key for key, _ in source], [line for _, line in source])
    whole.of_store(rows)
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory() as directory,
        closing(DividedSides(limit, directory)) as divided,
    ):
        if small:
            patch.setattr(headwater.pipeline.keyed, "_WRITTEN_AT_ONCE", 300)
            patch.setattr(headwater.pipeline.keyed, "_AT_ONCE", 2)
        for key, line in source:
            divided.of_source([key], [line])
        for row in rows:
            divided.of_store([row])
        divided.compare(7)
        found = [difference for some in divided.differences() for difference in some]
        assert sorted(found) == sorted(whole.differences(7))
        assert (divided.count, divided.twice) == (len(found), whole.twice)
        assert not list(Path(directory).iterdir())  # the files have no names


def test_memory_of_rows_that_do_not_fit(tmp_path: Path) -> None:
    """However many rows differ, a part of them is in memory."""
    with closing(DividedSides(1 << 20, str(tmp_path))) as divided:
        tracemalloc.start()
        try:
            for start in range(0, 200_000, 1_000):
                keys = [str(number) for number in range(start, start + 1_000)]
                divided.of_source(keys, [key.ljust(300) for key in keys])
            divided.compare(1)
            assert sum(map(len, divided.differences())) == 200_000
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 30 << 20  # of 60 MB
