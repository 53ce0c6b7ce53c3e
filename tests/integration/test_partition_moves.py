"""Rows that move between partitions, with large values that the stream leaves out: devices end with what SQL says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.fix_headwater import Deploy, wait_until
from tests.support.row_truth import Rows, device_rows, truth

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

BIG = "repeat('toast', 4000)"
PARTITIONS = """
create table event (id text not null, part int not null, body text, n int PRIMARY) partition by list (part);
create table event_a partition of event for values in (1);
create table event_b partition of event for values in (2) partition by range (n);
create table event_b1 partition of event_b for values from (0) to (10);
create table event_b2 partition of event_b for values from (10) to (100);
alter table event_a alter column body set storage external;
alter table event_b1 alter column body set storage external;
"""
LEAVES = ("event_a", "event_b1", "event_b2")
TRUNCATE_ONE = "truncate event_b; insert into event values ('5', 2, 'y', 5), ('6', 2, 'y', 50)"
MOVES = [
    "update event set part = 2 where id = '1'",
    "update event set n = n + 9 where part = 2; update event set body = 'x' where id = '2'",
    "update event set part = 1, id = 'moved' where id = '1'",
    "begin; update event set part = 3 - part; update event set part = 3 - part; commit",
    "delete from event where id = '3'",
    "begin; update event set part = 3 - part where id = '4'; update event set n = 5 where id = '4'; commit",
    TRUNCATE_ONE,
    "truncate event; insert into event values ('7', 1, 'y', 5), ('8', 2, 'y', 50)",
]


@pytest.mark.parametrize("identity", ["default", "full"])
@pytest.mark.parametrize("via_root", [True, False], ids=["as one table", "as many"])
def test_rows_move_between_partitions(deploy: Deploy, source_db: SourceDb, identity: str, via_root: bool) -> None:
    source_db.execute(PARTITIONS.replace("PRIMARY", ", primary key (id, part, n)" if identity == "default" else ""))
    for table in LEAVES:
        source_db.execute(f"alter table {table} replica identity {identity}")
    source_db.execute(f"alter table event replica identity {identity}")
    source_db.execute(f"insert into event select i::text, 1 + i % 2, {BIG}, i from generate_series(1, 6) i")
    source_db.execute(f"create publication headwater for table event with (publish_via_partition_root = {via_root})")
    tables = ("event",) if via_root else LEAVES
    lines = [f'  {table}: {{auto_subscribe: true, query: "SELECT * FROM {table}"}}' for table in tables]
    deployment = deploy("\n".join(["config: {edition: 3}", "streams:", *lines])).start()

    def right() -> bool:
        expected = sum((truth(source_db, table) for table in tables), Rows())
        return device_rows(deployment) == expected

    assert right()
    for change in MOVES:
        if via_root and change == TRUNCATE_ONE:
            continue  # which the stream does not tell
        source_db.execute(change)
        wait_until(right, f"the truth after: {change}")
    deployment.close()
    assert deployment.problems() == []
