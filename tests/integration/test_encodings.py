"""A database of the encoding SQL_ASCII may hold text that is not UTF-8: its rows are left out one by one, and named."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from headwater.source.connect import connect
from headwater.source.readiness.checks import source_findings
from tests.support.changed_source import Device, Rows, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

CONFIG = auto_streams(all=["SELECT * FROM notes", "SELECT * FROM whole"])
READABLE = "id !~ 'bad' and body !~ 'caf.$'"
SHOWN = {"public.notes": READABLE, "public.whole": READABLE}
BAD = r"E'caf\xe9'"

CHANGES = (
    f"insert into notes values ('4', {BAD})",
    f"update notes set body = {BAD} where id = '2'",  # a row that devices have
    f"insert into notes values (E'bad\\xe9', 'x'), (E'bad\\xe8', {BAD})",
    "update notes set body = body || 'x' where id = '3'",
    "update notes set body = 'mended' where id = '1'; update notes set id = '9' where id = E'bad\\xe9'",
    "update notes set id = E'bad\\xe7' where id = '3'",
    "delete from notes where id in ('4', E'bad\\xe8')",
    f"insert into whole values ('4', {BAD}); update whole set body = {BAD} where id = '2'",
    "update whole set body = 'mended' where id = '4'; delete from whole where id = '1'",
    "alter table notes add column filled text default 'x'",  # which has the table compared
    f"begin; update notes set body = {BAD}; update notes set body = 'fine' where id = '9'; commit",
)


@pytest.fixture
def legacy(source_db: SourceDb) -> Iterator[SourceDb]:
    name = f"{source_db.name}_legacy"
    source_db.execute(f"create database {name} encoding 'SQL_ASCII' lc_collate 'C' lc_ctype 'C' template template0")
    database = SourceDb(source_db.server, name)
    database.execute("set client_encoding = 'UTF8'")
    yield database
    database.drop()


def shows(deployment: Deployment, device: Device, truth: Rows) -> bool:
    return settled(deployment) and device.rows() == truth


def test_non_utf8_rows_are_left_out(legacy: SourceDb, deploy_on: Deploy, caplog: pytest.LogCaptureFixture) -> None:
    for table in ("notes", "whole"):
        legacy.execute(f"create table {table} (id text primary key, body text)")
        legacy.execute(f"insert into {table} values ('1', {BAD}), ('2', 'two'), ('3', repeat('large', 4000))")
    legacy.execute("alter table notes alter body set storage external; alter table whole replica identity full")
    legacy.execute("create publication headwater for all tables")
    deployment = deploy_on(legacy, CONFIG)
    device = Device(deployment.start())
    assert "[HW_3002]" in caplog.text
    assert "(public.notes, row 1, column body)" in caplog.text
    for change in ("select", *CHANGES):
        legacy.execute(change)
        truth = published_rows(legacy, SHOWN)
        wait_until(partial(shows, deployment, device, truth), f"the device to show what {change} did")
    for named in ("row 4, column body", "row 2, column body", r"row bad\xe9, column id"):
        assert f"(public.notes, {named})" in caplog.text
    assert deployment.kinds() == ["snapshot", "re-sync"]


def test_encoding_is_a_finding(legacy: SourceDb, source_db: SourceDb) -> None:
    for database, codes in ((legacy, ["HW_2031"]), (source_db, [])):
        database.execute("create publication headwater for all tables")
        with connect(database.settings()) as conn:
            assert [finding.code for finding in source_findings(conn, database.settings())] == codes
