"""The same sample of changes on every Postgres from 14 to 18 that the other tests do not run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries
from tests.support.changed_source import Device, Rows, settled, without_nulls
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import FAST, SourceDb
from tests.support.postgres_versions import postgres_of
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

CONFIG = auto_streams(notes="SELECT * FROM notes", others="SELECT * FROM others")

ROWS = 50
LARGE = "(select string_agg(md5(i::text), '') from generate_series(1, 300) i)"

STEPS = {
    "insert into notes select 'new' || i, i, " + LARGE + " from generate_series(1, 3) i": 3,
    "update notes set n = n + 100 where id like 'new%'": 3,  # large values are not streamed
    "update notes set id = 'moved' where id = 'new1'": 2,
    "begin; savepoint a; delete from notes; rollback to a; delete from notes where id = 'new2'; commit": 1,
    "alter table notes add column extra text default 'x'": ROWS + 2,
    "alter table notes replica identity full": 0,
    "alter table notes replica identity default": 0,
    "alter table notes add column twice int generated always as (n * 2) stored": ROWS + 2,
    "update notes set n = 7 where id = '7'; update notes set n = 1000 where id = '8'": 1,
    "alter table notes rename column extra to more": ROWS + 2,
    "alter publication headwater drop table notes; update notes set n = 0 where id = '9';"
    " alter publication headwater add table notes": 1,
    "drop publication headwater; update notes set n = 0 where id in ('10', '11');"
    " create publication headwater for table notes, others": 2,
    "begin; drop table notes; create table notes (id text primary key, n int);"
    " insert into notes values ('1', 1); alter publication headwater add table notes; commit": ROWS + 2,
    "truncate notes, others": 2,
}


@pytest.fixture
def source(tmp_path: Path, postgres_binaries: PostgresBinaries, request: pytest.FixtureRequest) -> Iterator[SourceDb]:
    major: int = request.param
    if major == postgres_binaries.major:
        pytest.skip("the other tests run on this one")
    with EmbeddedPostgres(tmp_path / "postgres", postgres_of(major), FAST) as server:
        source = SourceDb(server, "postgres")
        yield source
        source.connection.close()


def truth(source: SourceDb) -> Rows:
    rows: Rows = {}
    for table in ("notes", "others"):
        for (row,) in source.fetch(f"select row_to_json(t) from {table} t"):
            rows[table, row["id"]] = without_nulls(row)
    return rows


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "source", [14, *(pytest.param(major, marks=pytest.mark.long) for major in (15, 16, 17)), 18], indirect=True
)
def test_rows_tables_and_publications_change(source: SourceDb, deploy_on: Deploy) -> None:
    source.execute("create table notes (id text primary key, n int, body text)")
    source.execute(f"insert into notes select i::text, i, 'x' || i from generate_series(1, {ROWS}) i")
    source.execute("create table others (id text primary key); insert into others values ('first')")
    source.execute("create publication headwater for table notes, others")
    deployment = deploy_on(source, CONFIG).start()
    device = Device(deployment)
    for number, (sql, ops) in enumerate(STEPS.items()):
        before = deployment.op_count()
        source.execute(sql)
        source.execute(f"insert into others values ('{number}')")

        def equal() -> bool:
            return device.rows() == truth(source) and settled(deployment)

        wait_until(equal, f"the device to show the truth after: {sql}")
        assert deployment.op_count() - before - 1 == ops, sql
    assert deployment.kinds().count("snapshot") == 1
