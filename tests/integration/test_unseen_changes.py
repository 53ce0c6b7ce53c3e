"""What a table goes through between two looks at the catalog, after which it looks as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.support.fix_headwater import Deployment, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = pytest.mark.spark

Deploy = Callable[..., Deployment]

CONFIG = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes
"""

NOT_PUBLISHED = "alter publication headwater drop table notes"
PUBLISHED = "alter publication headwater add table notes"
DETACHED = "alter table notes detach partition notes_a"
ATTACHED = "alter table notes attach partition notes_a for values in ('a')"


@pytest.mark.parametrize(
    ("before", "touch", "after"),
    [
        (NOT_PUBLISHED, "update notes set n = n + 1", PUBLISHED),
        (NOT_PUBLISHED, "delete from notes where n < 3", PUBLISHED),
        (DETACHED, "update notes_a set n = n + 1", ATTACHED),
    ],
    ids=["not published: changed", "not published: deleted", "detached"],
)
def test_rows_that_were_changed_out_of_sight_are_found(
    deploy: Deploy, source_db: SourceDb, before: str, touch: str, after: str
) -> None:
    source_db.execute(
        "create table notes (id text, owner text, n int, primary key (id, owner)) partition by list (owner);"
        " create table notes_a partition of notes for values in ('a');"
        " create table notes_b partition of notes for values in ('b');"
        " insert into notes select i::text, 'a', i from generate_series(1, 5) i;"
        " insert into notes select i::text, 'b', i from generate_series(6, 9) i;"
        " create publication headwater for table notes with (publish_via_partition_root = true)"
    )
    deployment = deploy(CONFIG).start()

    def equal() -> bool:
        truth = dict(source_db.fetch("select id, n from notes"))
        return {key[1]: row["n"] for key, row in deployment.rows("x").items()} == truth

    assert equal()
    source_db.execute(f"begin; {before}; {touch}; {after}; commit")
    wait_until(equal, "the rows to be found")
    source_db.execute("insert into notes values ('new', 'b', 1)")
    assert equal()
    assert [record.kind for record in deployment.bulk_records()].count("snapshot") == 1
