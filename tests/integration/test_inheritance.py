"""Tables that inherit from others: to the stream each is a table of its own, although a query of one shows them all."""

from __future__ import annotations

import pytest

from headwater.oplog.change import UNCHANGED, Cell
from headwater.source.catalog.published import published_tables
from headwater.source.rows.fetch import RowFetcher, has_row, has_text
from tests.support.changed_source import Device, Rows, settled
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

SOURCE = """
create table cities (id text primary key, name text, n int);
create table capitals (primary key (id), country text) inherits (cities);
create table villages (primary key (id)) inherits (cities);
insert into cities select i::text, 'city ' || i, i from generate_series(1, 9) i;
insert into capitals select i::text, 'capital ' || i, i, 'x' from generate_series(5, 12) i;
insert into villages select i::text, 'village ' || i, i from generate_series(8, 15) i;
create publication headwater for table cities
"""

CONFIG = auto_streams(all=["SELECT * FROM cities", "SELECT * FROM capitals"])

SHOWN = ("cities", "capitals")


def own(source: SourceDb) -> Rows:
    """Each table's own rows."""
    rows: Rows = {}
    for table in SHOWN:
        for (row,) in source.fetch(f"select row_to_json(t) from only {table} t"):
            rows[table, row["id"]] = {name: value for name, value in row.items() if value is not None}
    return rows


CHANGES = {
    "rows": "update cities set name = 'all of them' where n between 5 and 9; update only cities set n = n + 100"
    " where n = 6; delete from cities where n = 8; insert into cities values ('new', 'city', 1);"
    " insert into capitals values ('new', 'capital', 1, 'y'); delete from only cities where n = 5",
    "one table emptied": "truncate only cities; insert into cities values ('1', 'again', 1)",
    "all emptied": "truncate cities; insert into capitals values ('1', 'again', 1, 'z')",
    "column added to all": "alter table cities add column mayor text default 'nobody'; update capitals set mayor = 'x'",
    "column with other values": "alter table cities alter n type int using n % 4",
    "inherits no more": "alter table capitals no inherit cities; update cities set name = 'apart'",
    "inherits again": "alter table capitals no inherit cities; update cities set name = 'apart';"
    " alter table capitals inherit cities; update cities set name = 'both' where n > 7",
    "another inherits": "create table towns () inherits (cities); insert into towns values ('1', 'town', 1);"
    " update cities set name = 'changed' where n = 1",
    "dropped": "drop table villages; update cities set name = 'left'",
}


@pytest.mark.parametrize("name", CHANGES)
def test_inherited_rows_stay_with_their_table(deploy: Deploy, source_db: SourceDb, name: str) -> None:
    source_db.execute(SOURCE)
    if name == "another inherits":
        source_db.execute("alter table cities replica identity full")  # towns have no key, and are not published
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    assert device.rows() == own(source_db)
    for statement in CHANGES[name].split(";"):
        source_db.execute(statement)
    wait_until(lambda: settled(deployment) and device.rows() == own(source_db), "each table's own rows to be shown")
    found = deployment.ask("audit")
    assert (found["state"], found["differences"], found["broken_buckets"]) == ("done", {}, 0)
    source_db.execute("update cities set n = 7")
    deployment.caught_up()
    assert device.rows() == own(source_db)


def test_fetched_row_is_not_of_child(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute(SOURCE)
    settings = deploy(CONFIG).settings
    tables = {table.relation.name: table for table in published_tables(source_db.connection, ["headwater"])}
    fetcher = RowFetcher(settings)
    try:
        for table, row_id, there in (("cities", "12", False), ("cities", "5", True), ("capitals", "12", True)):
            cells: list[Cell] = [row_id, *[UNCHANGED] * (len(tables[table].relation.columns) - 1)]
            found = fetcher.fetch(tables[table].relation, [cells])
            assert found is not None
            assert bool(found.rows) == there == has_row(source_db.connection, tables[table], row_id)
    finally:
        fetcher.close()
    assert has_text(source_db.connection, tables["cities"], ["city 5"])
    assert not has_text(source_db.connection, tables["cities"], ["capital 12"])


def test_fetched_row_is_of_any_partition(source_db: SourceDb) -> None:
    source_db.execute(
        "create table events (id text, day int, primary key (id, day)) partition by range (day);"
        "create table events_1 partition of events for values from (0) to (10);"
        "insert into events values ('a', 5); create publication headwater for table events"
        " with (publish_via_partition_root)"
    )
    (table,) = published_tables(source_db.connection, ["headwater"])
    assert has_row(source_db.connection, table, '["a","5"]')
    assert not has_row(source_db.connection, table, '["b","5"]')
