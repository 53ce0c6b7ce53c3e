"""What `headwater store forget` refuses before it looks at anything."""

from __future__ import annotations

import pytest

from tests.support.command import Run
from tests.support.ruled_configs import SERVED
from tests.support.ruled_store import RuledStore


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--table", "public.todos"),
        ("--id", "1"),
        ("--table", "public.todos", "--id", "1", "--contains", "whatever"),
        ("--contains", "whatever", "--id-too"),
    ],
)
def test_forget_arguments(headwater_here: Run, options: tuple[str, ...]) -> None:
    outcome = headwater_here("store", "forget", *options)
    assert outcome.code == 2
    assert "--table and --id" in outcome.err


def test_short_text(ruled: RuledStore, headwater_here: Run) -> None:
    outcome = headwater_here("store", "forget", "--contains", "Ann", "--yes")
    assert outcome.code == 1
    assert "fewer than 5 characters" in outcome.err


def test_unknown_table(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    outcome = headwater_here("store", "forget", "--table", "public.todo", "--id", "1", "--yes")
    assert outcome.code == 1
    assert "public.todos" in outcome.err


def test_forget_needs_the_source(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    outcome = headwater_here("store", "forget", "--contains", "some text", "--yes")
    assert outcome.code == 75
    assert "some text" not in outcome.err + outcome.out
