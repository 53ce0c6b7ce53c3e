"""Partitioned tables published as one whose partitions have replica identities of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from headwater.source.catalog.published import published_tables
from headwater.source.readiness.checks import table_findings
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deployment, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

Deploy = Callable[..., "Deployment"]

CONFIG = """
config: {edition: 3}
streams:
  events:
    auto_subscribe: true
    query: SELECT * FROM events
"""
SHOWN = {"public.events": "true"}

BIG = "(select string_agg(md5(i::text), '') from generate_series(1, 400) i)"  # too large to stand in the row

BY_KEY = {
    "full root": "alter table events replica identity full",
    "full root and one full partition": "alter table events replica identity full;"
    " alter table events_1 replica identity full",
    "full partition": "alter table events_1 replica identity full",
    "full partitions": "alter table events_1 replica identity full; alter table events_2 replica identity full",
    "partition by another index of the same columns": "create unique index other on events_1 (day, id);"
    " alter table events_1 replica identity using index other",
    "partition by an index of more columns": "alter table events_1 alter body set not null;"
    " create unique index other on events_1 (day, id, body); alter table events_1 replica identity using index other",
    "nothing for the root": "alter table events replica identity nothing",
}

MIXED = (
    "alter table events_1 alter body set not null; create unique index other on events_1 (body);"
    " alter table events_1 replica identity using index other"
)


def prepare(source: SourceDb, identities: str) -> None:
    source.execute(
        "create table events (id text, day int, body text, big text, primary key (id, day)) partition by range (day);"
        "create table events_1 partition of events for values from (0) to (10);"
        "create table events_2 partition of events for values from (10) to (20)"
    )
    source.execute(identities)
    source.execute("create publication headwater for table events with (publish_via_partition_root)")
    source.execute(f"insert into events select i::text, i, 'x' || i, {BIG} from generate_series(0, 19) i")


STEPS = {
    "update events set body = 'y' where id in ('1', '11')": 2,
    "update events set day = 2 where id = '1'; update events set day = 12 where id = '11'": 4,
    "update events set id = 'other' where id = '1'": 2,
    "update events set day = 13 where id = 'other'; update events set day = 3 where id = '11'": 4,
    "delete from events where id in ('other', '11', '5', '15')": 4,
    "insert into events values ('a', 3, 'new'), ('b', 13, 'new')": 2,
    "update events set big = body where id in ('a', '12')": 2,
}


def played(deployment: Deployment, device: Device) -> None:
    """Change rows of both partitions and hold the device to the truth, at no more than its price."""
    source = deployment.source
    for sql, ops in STEPS.items():
        before = deployment.op_count()
        source.execute(sql)
        deployment.caught_up()
        assert device.rows() == published_rows(source, SHOWN), sql
        assert deployment.op_count() - before == ops, sql


@pytest.mark.parametrize("identities", BY_KEY.values(), ids=BY_KEY)
def test_rows_are_told_apart_by_the_key_that_all_partitions_have(
    deploy: Deploy, source_db: SourceDb, identities: str
) -> None:
    prepare(source_db, identities)
    deployment = deploy(CONFIG).start()
    played(deployment, Device(deployment))
    assert [record.kind for record in deployment.bulk_records()] == ["snapshot"]
    deployment.close()
    assert deployment.problems() == []


def test_a_new_partition_of_a_table_with_another_identity_than_the_others(deploy: Deploy, source_db: SourceDb) -> None:
    full = "; ".join(f"alter table {table} replica identity full" for table in ("events", "events_1", "events_2"))
    prepare(source_db, full)
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    source_db.execute("create table events_3 partition of events for values from (20) to (30)")
    source_db.execute("insert into events values ('n', 21, 'x', 'y'), ('m', 22, 'x', 'y')")
    source_db.execute("update events set body = 'z' where id = 'n'; delete from events where id = 'm'")
    wait_until(lambda: settled(deployment), "the table to be compared")
    assert device.rows() == published_rows(source_db, SHOWN)
    played(deployment, device)
    deployment.close()
    assert deployment.problems() == []


@pytest.mark.long
def test_partitions_with_nothing_in_common_are_told_of_and_compared(deploy: Deploy, source_db: SourceDb) -> None:
    prepare(source_db, MIXED)
    (finding,) = table_findings(source_db.connection, published_tables(source_db.connection, ["headwater"]))
    assert (finding.code, finding.fatal) == ("HW_2029", False)
    assert "the partitions of public.events tell rows apart in different ways" in finding.what
    deployment = deploy(CONFIG)
    deployment.intervals = replace(deployment.intervals, audit=0.1)
    device = Device(deployment.start())
    for sql in STEPS:
        source_db.execute(sql)
        wait_until(lambda: device.rows() == published_rows(source_db, SHOWN), f"a comparison to find: {sql}")
    source_db.execute("alter table events_1 replica identity default")
    wait_until(lambda: settled(deployment), "rows to be told apart")
    source_db.execute("update events set body = 'at once' where id = '7'")
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, SHOWN)
    assert table_findings(source_db.connection, published_tables(source_db.connection, ["headwater"])) == []
