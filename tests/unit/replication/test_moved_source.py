"""Whether another database is followed, by what was seen of its tables."""

from __future__ import annotations

import pytest

from headwater.replication.moved_source import SeenTable, doubts

SAME = SeenTable("public.notes", sampled=100, equal=100)


@pytest.mark.parametrize(
    "seen",
    [
        [],
        [SAME],
        [SAME, SeenTable("public.log")],
        [SAME, SeenTable("public.few", sampled=3, altered=3)],
    ],
)
def test_followed(seen: list[SeenTable]) -> None:
    assert doubts(seen) == []


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        ([SeenTable("public.log")], "the rows of public.log have no key to look them up by"),
        ([SAME, SeenTable("public.gone", "is not there")], "public.gone is not there"),
        ([SAME, SeenTable("public.held", busy="is locked now")], "public.held is locked now"),
        ([SAME, SeenTable("public.b", sampled=20)], "of 20 rows of public.b, 20 are not there"),
        ([SeenTable("public.few", sampled=3, altered=3)], "of 3 rows of public.few, 3 have other values"),
    ],
)
def test_doubted(seen: list[SeenTable], why: str) -> None:
    assert doubts(seen) == [why]
