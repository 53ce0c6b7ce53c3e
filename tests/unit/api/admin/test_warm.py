"""Who types rules does not wait for the source, and never learns of tables that are long gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from headwater.api.admin import warm as module
from headwater.api.admin.warm import WarmSchema
from headwater_rules.schema import SeenSchema, SourceSchema, SourceTable, not_compared
from tests.support.fix_admin import NOWHERE
from tests.support.waiting import wait_until

TEXT = """
config: {edition: 3}
tables: {totals: {query: SELECT 1 AS id, key: id, refresh: {every: 5m}}}
streams: {s: {query: SELECT * FROM totals}}
"""


@dataclass
class PlayedSource:
    """A source that has the table `t1` when it is asked for the first time, then `t2`, and so on."""

    asked: int = 0
    computed: int = 0
    answers: threading.Event = field(default_factory=threading.Event)

    def see(self, *_: Any) -> SeenSchema:
        assert self.answers.wait(10)
        self.asked += 1
        return SeenSchema(SourceSchema((SourceTable("default", "public", f"t{self.asked}", ()),)), "")

    def describe(self, schema: SourceSchema, *_: Any) -> SourceSchema:
        self.computed += 1
        return SourceSchema((*schema.tables, SourceTable("default", "", "totals", ())))


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> PlayedSource:
    played = PlayedSource()
    played.answers.set()
    monkeypatch.setattr(module, "see_schema", played.see)
    monkeypatch.setattr(module, "with_computed", played.describe)
    return played


@pytest.fixture
def make(source: PlayedSource) -> Iterator[Callable[..., WarmSchema]]:
    """Makes such a schema, which keeps tables for so long."""
    with ExitStack() as stack:

        def made(fresh: float = 60.0, usable: float = 60.0) -> WarmSchema:
            found = WarmSchema([NOWHERE], fresh, usable)
            stack.callback(found.close)
            return found

        yield made
        source.answers.set()


@pytest.fixture
def warm(make: Callable[..., WarmSchema]) -> WarmSchema:
    return make()


def names(warm: WarmSchema, text: str = "") -> list[str]:
    schema = warm.tables(text).found.schema
    assert schema is not None
    return [table.name for table in schema.tables]


def test_tables_are_read_once(warm: WarmSchema, source: PlayedSource) -> None:
    assert {names(warm)[0] for _ in range(50)} == {"t1"}
    assert source.asked == 1


def test_old_tables_are_read_again_beside(make: Callable[..., WarmSchema], source: PlayedSource) -> None:
    warm = make(fresh=0.0)
    assert names(warm) == ["t1"]
    source.answers.clear()  # so whoever waits for it hangs
    assert names(warm) == names(warm) == ["t1"]
    source.answers.set()
    wait_until(lambda: names(warm) != ["t1"], "the tables are read again")


def test_tables_that_are_too_old_are_not_shown(make: Callable[..., WarmSchema]) -> None:
    warm = make(fresh=0.0, usable=0.0)
    assert [names(warm), names(warm)] == [["t1"], ["t2"]]


def test_many_wait_for_one_reading(warm: WarmSchema, source: PlayedSource) -> None:
    source.answers.clear()
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(names(warm))) for _ in range(8)]
    for thread in threads:
        thread.start()
    source.answers.set()
    for thread in threads:
        thread.join(10)
    assert found == [["t1"]] * 8
    assert source.asked == 1


def test_a_failed_reading_is_no_end(warm: WarmSchema, source: PlayedSource, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> SeenSchema:
        raise RuntimeError("of the test")

    monkeypatch.setattr(module, "see_schema", broken)
    with pytest.raises(RuntimeError, match="of the test"):
        warm.tables()
    monkeypatch.setattr(module, "see_schema", source.see)
    assert names(warm) == ["t1"]


def test_why_there_is_nothing_is_kept_too(warm: WarmSchema, monkeypatch: pytest.MonkeyPatch) -> None:
    away = iter([not_compared("it is away")])
    monkeypatch.setattr(module, "see_schema", lambda *_: next(away))
    assert {warm.tables(TEXT).found.note for _ in range(3)} == {not_compared("it is away").note}


def test_computed_tables_are_described_once_while_they_stay(warm: WarmSchema, source: PlayedSource) -> None:
    assert names(warm, TEXT) == names(warm, TEXT + "# another stream") == ["t1", "totals"]
    assert source.computed == 1
    names(warm, TEXT.replace("SELECT 1", "SELECT 2"))
    assert source.computed == 2
