"""How many differences are merged between two flushes."""

from __future__ import annotations

from headwater.bulk.contract import Difference
from headwater.replication.jobs.merge import Portion

ROOM = 1 << 30


def differences(count: int, line: str = "1\tx") -> list[Difference]:
    return [Difference(1, str(number), line, 1) for number in range(count)]


def merged_at(portion: Portion, seconds_a_row: float, rows: int = 2_500) -> int:
    """How many are merged at once in the end, where each takes so long."""
    for _ in range(50):
        count = portion.of(differences(rows), ROOM)
        portion.took(count, count * seconds_a_row)
    return portion.of(differences(rows), ROOM)


def test_commits_wait_as_long_as_a_portion_takes_on_this_machine() -> None:
    assert 250 <= merged_at(Portion(), 0.0001) <= 350
    assert merged_at(Portion(), 0.01) == 100
    assert merged_at(Portion(), 0.000001) == 2_000


def test_a_portion_grows_again_when_what_slowed_it_is_over() -> None:
    portion = Portion()
    assert merged_at(portion, 0.01) == 100
    assert merged_at(portion, 0.000001) == 2_000


def test_the_end_of_a_comparison_says_nothing_of_a_whole_portion() -> None:
    portion = Portion()
    before = merged_at(portion, 0.0001)
    for _ in range(10):
        portion.took(1, 0.0001)
    assert portion.of(differences(5_000), ROOM) == before


def test_large_rows_are_merged_by_their_size_and_one_always() -> None:
    line = "x" * 1_000
    assert Portion().of(differences(500, line), 10_000) == 10
    assert Portion().of(differences(500, line), 10) == 1
