"""Rows that nothing but their values tells apart are counted while their table is compared and goes on changing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from headwater.bulk.contract import Difference
from headwater.replication.jobs import merge
from headwater.replication.jobs.merge import Merge
from headwater.storage.sqlite.flush import SqliteFlush
from tests.support.changed_source import settled
from tests.support.fix_headwater import Deploy, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

CONFIG = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT * FROM items
"""


def test_rows_that_come_again_while_their_table_is_compared_are_as_many_as_in_the_source(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_db.execute("create table items (n int, body text, gone text)")
    source_db.execute("alter table items replica identity nothing")
    source_db.execute("insert into items select i, 'body ' || i, 'gone' from generate_series(1, 3000) i")
    deployment = deploy(CONFIG).start()
    looks: list[int] = []

    def position() -> int:
        deployment.caught_up()
        return max(bucket.position for bucket in deployment.buckets("a").values())

    before = position()
    look = SqliteFlush.rows_with_lines

    def noted(flush: SqliteFlush, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        found = look(flush, table, lines)
        looks.append(len(lines))
        if len(looks) == 1:
            source_db.execute("insert into items select n, body from items")
        return found

    next_batch = Merge.next_batch

    def after_the_rows(self: Merge, differences: Sequence[Difference], oids: frozenset[int]) -> int:
        if not looks or any(self._log.of(oid).delta for oid in oids):  # the rows have come meanwhile
            return next_batch(self, differences, oids)
        return 0

    monkeypatch.setattr(SqliteFlush, "rows_with_lines", noted)
    monkeypatch.setattr(Merge, "next_batch", after_the_rows)
    monkeypatch.setattr(merge, "_MOST", 100)  # rows of a batch, which are 60 then
    source_db.execute("alter table items drop column gone")
    wait_until(lambda: settled(deployment), "the comparison to end")
    wait_until(lambda: len(deployment.rows("a")) >= 6000, "the rows that came meanwhile", seconds=30)
    shown = Counter((row["n"], row["body"]) for row in deployment.rows("a").values())
    assert shown == Counter(source_db.fetch("select n, body from items"))
    assert len(looks) <= 10  # each reads the whole table
    # Each row came once, and was written once more for its column: none was put there for another, and removed again
    assert position() - before < 7000
    deployment.close()
    assert deployment.problems() == []
