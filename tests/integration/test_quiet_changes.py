"""What devices do not see costs them nothing, and what they see costs them as little as it can."""

from __future__ import annotations

import pytest

from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb

ROWS, OWNERS = 100_000, 10

ITEMS = """
config: {edition: 3}
streams:
  items:
    auto_subscribe: true
    query: SELECT id, label FROM items WHERE owner = auth.user_id()
"""


@pytest.fixture
def items(source_db: SourceDb) -> SourceDb:
    source_db.execute("create table items (id text primary key, owner text, label text, touched timestamptz)")
    return source_db


def fill(source: SourceDb, rows: int) -> None:
    source.execute(
        f"insert into items select i::text, 'u' || i % {OWNERS}, 'item ' || i from generate_series(1, {rows}) i"
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_touching_every_row_costs_no_op_and_emptying_the_table_two_a_bucket(deploy: Deploy, items: SourceDb) -> None:
    fill(items, ROWS)
    deployment = deploy(ITEMS).start()
    ops = deployment.op_count()
    assert ops == ROWS + OWNERS, "one op a row, and the one that each bucket begins with"
    items.execute("update items set touched = now()")
    assert deployment.op_count() == ops
    items.execute("update items set touched = null, label = 'seen' where id = '7'")
    assert deployment.op_count() == ops + 1
    devices = {f"u{n}": deployment.buckets(f"u{n}") for n in range(OWNERS)}
    assert sum(len(bucket.rows) for buckets in devices.values() for bucket in buckets.values()) == ROWS
    items.execute("truncate items")
    assert deployment.op_count() - (ops + 1) <= 2 * OWNERS
    assert all(deployment.rows(user) == {} for user in devices)
    items.execute("insert into items values ('new', 'u3', 'after', null)")
    assert deployment.rows("u3") == {("items", "new"): {"id": "new", "label": "after"}}
    deployment.close()
    assert deployment.problems() == []


def test_several_changes_of_one_row_in_a_transaction_are_one_op(deploy: Deploy, items: SourceDb) -> None:
    fill(items, 20)
    deployment = deploy(ITEMS).start()
    ops = deployment.op_count()
    with items.connection.transaction():
        for number in range(5):
            items.execute("update items set label = %s where id = '3'", f"label {number}")
    assert deployment.op_count() == ops + 1
    assert deployment.rows("u3")["items", "3"]["label"] == "label 4"
    with items.connection.transaction():
        items.execute("insert into items values ('gone', 'u3', 'x', null)")
        items.execute("update items set label = 'y' where id = 'gone'")
        items.execute("delete from items where id = 'gone'")
        items.execute("update items set label = 'back' where id = '3'")
        items.execute("update items set label = 'label 4' where id = '3'")
    assert deployment.op_count() == ops + 1, "nothing is different for a device"
    with items.connection.transaction():
        items.execute("delete from items where id = '3'")
        items.execute("insert into items values ('3', 'u3', 'anew', null)")
    assert deployment.op_count() == ops + 2
