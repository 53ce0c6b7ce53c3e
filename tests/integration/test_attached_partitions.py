"""A partition that is attached, or made, is read by itself: nobody reads the rows of the others again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.bulk.contract import CompareJob, CompareOutcome, Difference, Report
from headwater.pipeline.jobs import BulkJobs
from headwater.storage.contract.reason import Cause
from tests.support.changed_source import Device, compared, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment, wait_until
from tests.support.local_bulk import LocalEngine

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


CONFIG = """
config: {edition: 3}
streams:
  events:
    auto_subscribe: true
    query: SELECT * FROM events
"""

SHOWN = {"public.events": "true"}

SOURCE = """
create table events (id text, day int, body text, primary key (id, day)) partition by range (day);
create table events_1 partition of events for values from (0) to (10);
create table events_2 partition of events for values from (10) to (20);
insert into events select i::text, i, 'x' || i from generate_series(0, 19) i;
create table loose (day int not null, gone int, id text not null, body text);
alter table loose drop gone;
insert into loose (day, id, body) select 30 + i, 'loose ' || i, 'x' from generate_series(0, 4) i;
create publication headwater for table events with (publish_via_partition_root)
"""

ATTACH = "alter table events attach partition loose for values from (30) to (40)"


class Noted(BulkJobs):
    """Bulk work that notes which partitions are compared, and whether rows of the store are."""

    def __init__(self) -> None:
        super().__init__(LocalEngine())
        self.compared: list[tuple[list[str], bool]] = []

    def compare(
        self,
        job: CompareJob,
        progress: Report,
        found: Callable[[Sequence[Difference]], None],
        stop: threading.Event | None = None,
    ) -> CompareOutcome:
        for table in job.tables:
            self.compared.append(([leaf.name for leaf in table.published.leaves], bool(table.ranges)))
        return super().compare(job, progress, found, stop)


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb, noted: Noted) -> Deployment:
    source_db.execute(SOURCE)
    found = deploy(CONFIG)
    found.bulk = noted
    return found


def shown(deployment: Deployment, device: Device) -> None:
    """Wait until everything is as it should be, and look for what contradicts itself."""
    source = deployment.source
    wait_until(lambda: device.rows() == published_rows(source, SHOWN) and settled(deployment), "the truth to be shown")
    source.execute("update events set body = 'last'; delete from events where day in (3, 31)")
    deployment.caught_up()
    assert device.rows() == published_rows(source, SHOWN)
    deployment.close()
    assert deployment.problems() == []


def attached(deployment: Deployment) -> int:
    """How many partitions the mark of the first table names."""
    with deployment.store() as store:
        (table, *_) = store.tables("default")
    return str(table.resync).count("public.") if table.has(Cause.ATTACHED) else 0


@pytest.mark.parametrize("sql", [ATTACH, "create table loose_2 partition of events for values from (50) to (60)"])
def test_only_what_was_attached_is_read(deployment: Deployment, noted: Noted, sql: str) -> None:
    device, source = Device(deployment.start()), deployment.source
    before = deployment.op_count()
    source.execute(sql)
    wait_until(lambda: bool(noted.compared) and settled(deployment), "the comparison to end")
    assert noted.compared == [([sql.split()[5] if sql == ATTACH else "loose_2"], False)]
    assert deployment.op_count() - before == (5 if sql == ATTACH else 0)
    shown(deployment, device)


def test_rows_that_move_between_partitions_meanwhile_are_right(deployment: Deployment, noted: Noted) -> None:
    device, source = Device(deployment.start()), deployment.source
    with psycopg.connect(source.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # now the comparison's snapshot waits for it to end
        source.execute("update loose set body = 'before' where day = 30")
        source.execute(ATTACH)
        source.execute("update events set day = 33 where id = '4'; update events set day = 5 where id = 'loose 3'")
        wait_until(lambda: compared(deployment), "somebody to notice")
        source.execute("update events set day = 35, body = 'moved' where id in ('5', '15')")
        source.execute("update events set day = 15 where id = 'loose 0'; delete from events where id = 'loose 1'")
        source.execute("update events set id = 'another' where id = 'loose 2'; insert into events values ('n', 36)")
        source.execute("insert into events values ('loose 1', 31, 'new'); delete from events where id in ('6', '16')")
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert {tuple(leaves) for leaves, _ in noted.compared} == {("loose",)}
    shown(deployment, device)


def test_several_that_are_attached_one_after_the_other_are_read(deployment: Deployment, noted: Noted) -> None:
    device, source = Device(deployment.start()), deployment.source
    source.execute(
        "create table more (id text not null, day int not null, body text); insert into more values ('m', 41)"
    )
    with psycopg.connect(source.dsn) as writer:
        writer.execute("select pg_current_xact_id()")
        source.execute(ATTACH)
        wait_until(lambda: attached(deployment) == 1, "the first to be noticed")
        source.execute("alter table events attach partition more for values from (40) to (50)")
        wait_until(lambda: attached(deployment) == 2, "the second to be noticed")
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert noted.compared == [(["loose", "more"], False)]
    shown(deployment, device)


WHOLE = {
    "detached": "alter table events detach partition events_1",
    "emptied": "truncate events_2",
    "another type": "alter table events alter body type text using body || '!'",
    "column added": "alter table events add n int default 7",
    "another partition made anew": "begin; alter table events detach partition events_1; alter table events attach"
    " partition events_1 for values from (0) to (10); commit",
}


@pytest.mark.parametrize("name", WHOLE)
def test_with_anything_else_the_whole_table_is_compared(deployment: Deployment, noted: Noted, name: str) -> None:
    device, source = Device(deployment.start()), deployment.source
    deployment.stop()
    source.execute(f"update events set body = 'meanwhile' where day in (4, 14); {ATTACH}")
    source.execute(WHOLE[name])
    deployment.start()
    wait_until(lambda: bool(noted.compared) and settled(deployment), "the comparison to end")
    assert all(len(leaves) > 1 and store for leaves, store in noted.compared)
    shown(deployment, device)


@pytest.mark.parametrize("how", ["slot lost", "no key"])
def test_where_more_may_be_missing_the_whole_table_is_compared(deployment: Deployment, noted: Noted, how: str) -> None:
    source = deployment.source
    if how == "no key":
        source.execute("alter table events drop constraint events_pkey")
        for table in ("events", "events_1", "events_2", "loose"):
            source.execute(f"alter table {table} replica identity full")
    device = Device(deployment.start())
    with psycopg.connect(source.dsn) as writer:
        writer.execute("select pg_current_xact_id()")
        source.execute(ATTACH)
        wait_until(lambda: compared(deployment), "somebody to notice")
        deployment.stop()
    if how == "slot lost":
        source.lose_slots()
        source.execute("update events set body = 'missed' where day < 15")
    deployment.start()
    wait_until(lambda: bool(noted.compared) and settled(deployment), "the comparison to end")
    assert noted.compared[-1] == (["events_1", "events_2", "loose"], True)
    shown(deployment, device)
