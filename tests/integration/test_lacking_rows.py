"""Rows that lack values which only the source has: asked for seldom and together, and never at the cost of others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.oplog.change import Cell, Relation
from headwater.oplog.limits import ROW_LIMIT
from headwater.replication.stream import flush
from headwater.source.rows.fetch import Fetched, RowFetcher
from tests.support.changed_source import compared, settled
from tests.support.fix_headwater import Deploy, Deployment, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

Rows = dict[tuple[str, str], tuple[object, ...]]

CONFIG = """
config: {edition: 3}
streams:
  all:
    auto_subscribe: true
    queries: [SELECT * FROM items, SELECT * FROM others]
"""

BIG = "repeat('toast', 2000)"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the source was asked for, each time."""
    fetch = RowFetcher.fetch
    sizes: list[int] = []

    def counting(
        fetcher: RowFetcher, relation: Relation, keys: Sequence[Sequence[Cell]], files: Collection[int]
    ) -> Fetched | None:
        sizes.append(len(keys))
        return fetch(fetcher, relation, keys, files)

    monkeypatch.setattr(RowFetcher, "fetch", counting)
    return sizes


def create(source: SourceDb, publication: str = "for table items, others") -> None:
    source.execute("create table items (id text primary key, n int, body text, more text)")
    source.execute("alter table items alter body set storage external, alter more set storage external")
    source.execute("create table others (id text primary key, body text)")
    source.execute(f"create publication headwater {publication}")


def truth(source: SourceDb, condition: str = "true") -> Rows:
    rows = source.fetch(f"select id, n, body, more from items where {condition}")
    return {("items", row[0]): tuple(row[1:]) for row in rows}


def shown(deployment: Deployment) -> Rows:
    found = deployment.rows("a")
    return {key: (row["n"], row["body"], row["more"]) for key, row in found.items() if key[0] == "items"}


def test_a_row_over_the_limit_is_not_asked_for_while_its_large_values_stay(
    deploy: Deploy, source_db: SourceDb, asked: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    create(source_db)
    large, half = f"repeat('x', {ROW_LIMIT})", f"repeat('y', {ROW_LIMIT * 2 // 3})"
    source_db.execute(f"insert into items values ('one', 0, {large}, 'small'), ('two', 0, {half}, {half})")
    deployment = deploy(CONFIG).start()
    caplog.clear()
    for n in range(1, 21):
        source_db.execute("update items set n = %s", n)
        source_db.execute("insert into others values (%s, 'x')", str(n))
    assert shown(deployment) == {}
    assert asked == []
    assert not [r for r in caplog.records if "too large" in r.getMessage()], "said once, when it was found"
    source_db.execute("update items set body = 'short'")  # the other value of `two` is known nowhere but there
    assert shown(deployment) == truth(source_db)
    assert asked == [1]
    source_db.execute(f"update items set body = {large}; update items set more = 'tiny'; update items set n = 30")
    assert shown(deployment) == {}
    assert asked == [1], "values that shrink do not have a row asked for that is too large still"
    assert deployment.ask("audit")["differences"] == {}
    deployment.close()
    assert deployment.problems() == []


def test_rows_that_lack_values_are_asked_for_together_and_once(
    deploy: Deploy, source_db: SourceDb, asked: list[int]
) -> None:
    source_db.needs(15, "row filters of publications")
    source_db.execute("create table items (id text, n int, body text, more text, primary key (id, n))")
    source_db.execute("alter table items alter body set storage external")
    source_db.execute("create table others (id text primary key, body text)")
    source_db.execute("create publication headwater for table items where (n > 0), others")
    source_db.execute(f"insert into items select i::text, 0, {BIG} || i, 'x' from generate_series(1, 200) i")
    deployment = deploy(CONFIG).start()
    source_db.execute(
        "begin; update items set n = 1 where id <> '7'; update items set more = 'y' where n = 1;"
        " update items set n = 2 where id < '15'; delete from items where id = '9'; commit"
    )
    assert shown(deployment) == truth(source_db, "n > 0")
    assert sum(asked) <= 200
    assert len(asked) <= 4, "a few at first, to see how large they are"
    deployment.close()
    assert deployment.problems() == []


def test_rows_that_a_comparison_brings_are_not_asked_for(deploy: Deploy, source_db: SourceDb, asked: list[int]) -> None:
    create(source_db, "for table others")
    source_db.execute(f"insert into items select i::text, 0, {BIG} || i, 'x' from generate_series(1, 50) i")
    deployment = deploy(CONFIG).start()
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # the comparison's snapshot waits for it to end
        source_db.execute("alter publication headwater add table items")
        wait_until(lambda: compared(deployment), "the table to be filled")
        for n in range(1, 11):
            source_db.execute("update items set n = n + 1")
            source_db.execute("update items set id = 'moved ' || id where id = %s", str(n))
            source_db.execute("insert into others values (%s, 'x')", str(n))
            deployment.caught_up()
        source_db.execute(
            "update items set more = 'y', n = n + 1 where id like '2%'; delete from items where id = '31'"
        )
        deployment.caught_up()
        assert shown(deployment) == {}, "no row is shown that is not complete"
    wait_until(lambda: settled(deployment), "the table to be filled")
    assert shown(deployment) == truth(source_db)
    assert asked == []
    source_db.execute("update items set n = n + 1")
    assert shown(deployment) == truth(source_db)
    assert asked == []
    deployment.close()
    assert deployment.problems() == []


def test_a_table_of_which_rows_are_asked_for_again_and_again_is_compared_instead(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch, asked: list[int]
) -> None:
    monkeypatch.setattr(flush, "READING_SECONDS", -1.0)
    source_db.needs(15, "row filters of publications")
    source_db.execute("create table items (id text, n int, body text, more text, primary key (id, n))")
    source_db.execute("alter table items alter body set storage external")
    source_db.execute("create table others (id text primary key, body text)")
    source_db.execute("create publication headwater for table items where (n > 0), others")
    source_db.execute(f"insert into items select i::text, 0, {BIG} || i, 'x' from generate_series(1, 20) i")
    deployment = deploy(CONFIG).start()
    source_db.execute("update items set n = 1; update items set more = 'y' where id < '3'")
    wait_until(lambda: settled(deployment) and shown(deployment) == truth(source_db, "n > 0"), "the comparison")
    assert len(asked) == 1
    assert [record.kind for record in deployment.bulk_records()] == ["snapshot", "re-sync"]
    deployment.close()
    assert deployment.problems() == []
