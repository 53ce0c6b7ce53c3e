"""A schema for each tenant, named by a wildcard: devices show what SQL says after each change of one of the schemas."""

from __future__ import annotations

import pytest

from headwater.source.triggers import install
from tests.support.changed_source import Device, Rows, as_shown, settled
from tests.support.fix_headwater import TRIGGERED, Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.turns import AT_THE_START, BY_LOOKING, BY_TRIGGERS, FOUND
from tests.support.waiting import wait_until

CONFIG = auto_streams(
    everything="SELECT notes.*, notes.schema() || '/' || notes.id AS id FROM \"tenant_%\".notes",
    own="SELECT n.schema() || '/' || n.id AS id, n.body, n.schema() AS tenant FROM \"tenant_%\".notes AS n"
    " WHERE n.schema() IN (SELECT m.tenant FROM members AS m WHERE m.who = auth.user_id())",
)


def made(*tenants: str, columns: str = "id int primary key, body text, n int") -> str:
    """Schemas with the same ids, and rows of their own."""
    return ";".join(
        f"create schema {tenant}; create table {tenant}.notes ({columns});"
        f" insert into {tenant}.notes select i, '{tenant} ' || i from generate_series(1, 5) i"
        for tenant in tenants
    )


CHANGES = (
    "alter table tenant_a.notes add column extra int default 7",
    "update tenant_b.notes set body = 'changed' where id = 1; update tenant_a.notes set extra = 8 where id = 2",
    "alter table tenant_a.notes rename column body to words",
    "alter table tenant_a.notes rename column words to body; alter table tenant_a.notes drop column extra",
    "alter table tenant_b.notes alter column n type text using 'n' || id",
    made("tenant_c"),
    "insert into members values ('a', 'tenant_c'); update tenant_c.notes set body = 'mine' where id = 3",
    "alter table tenant_c.notes drop constraint notes_pkey; alter table tenant_c.notes replica identity full",
    "delete from tenant_c.notes where id = 2; insert into tenant_c.notes values (9, 'nine')",
    "drop schema tenant_b cascade",
    made("tenant_b", columns="id uuid primary key default gen_random_uuid(), n int, body text").replace(
        "select i,", "(n, body) select i,"
    ),
    "alter schema tenant_a rename to tenant_d",
    "alter schema tenant_d rename to archive",
    "update archive.notes set body = 'archived'; delete from archive.notes where id = 4",
    "alter schema archive rename to tenant_a",
    "alter schema tenant_a rename to x; alter schema tenant_c rename to tenant_a; alter schema x rename to tenant_c",
    "drop table tenant_c.notes; create table tenant_c.notes (id text primary key, body text, kind text)",
    "insert into tenant_c.notes values ('1', 'other', 'k')",
    "create schema tenant_e; alter table tenant_a.notes set schema tenant_e",
    "alter table tenant_e.notes rename to old_notes",
    "update tenant_e.old_notes set body = 'renamed'; alter table tenant_e.old_notes rename to notes",
    f"{made('tenant_f')}; drop schema tenant_f cascade",
    made("tenant_g"),
    "drop schema tenant_g cascade; truncate tenant_c.notes",
    made(*(f"tenant_{number}" for number in range(20))),
    "do $$ begin for i in 0..18 loop execute format('drop schema tenant_%s cascade', i); end loop; end $$",
    "insert into tenant_19.notes values (10, 'last'); insert into members values ('a', 'tenant_19')",
)


def truth(source: SourceDb) -> Rows:
    """What a device of `a` is to show."""
    mine = {tenant for (tenant,) in source.fetch("select tenant from members where who = 'a'")}
    rows: Rows = {}
    schemas = source.fetch("select schemaname from pg_tables where schemaname like 'tenant_%' and tablename = 'notes'")
    for (schema,) in schemas:
        for (row,) in source.fetch(f"select row_to_json(t) from {schema}.notes t"):
            key = f"{schema}/{row['id']}"
            rows["notes", key] = as_shown({**row, "id": key})
            if schema in mine:
                rows["n", key] = as_shown({"id": key, "body": row.get("body"), "tenant": schema})
    return rows


def start(deployment: Deployment, found: str) -> None:
    source = deployment.source
    source.execute(f"create table members (who text, tenant text, primary key (who, tenant)); {made('tenant_a')}")
    source.execute(f"insert into members values ('a', 'tenant_a'), ('b', 'tenant_b'); {made('tenant_b')}")
    if found == BY_TRIGGERS:
        assert install(deployment.settings).done
        deployment.intervals = TRIGGERED
    deployment.start()


@pytest.mark.parametrize("found", [BY_LOOKING, *(pytest.param(way, marks=pytest.mark.long) for way in FOUND[1:])])
@pytest.mark.long
def test_devices_follow_the_schemas_of_tenants(deploy: Deploy, source_db: SourceDb, found: str) -> None:
    deployment = deploy(CONFIG)
    start(deployment, found)
    device = Device(deployment)
    wait_until(lambda: device.rows() == truth(source_db), "the first rows")
    for change in CHANGES:
        if found == AT_THE_START:
            deployment.stop()
        source_db.execute(change)
        if found == AT_THE_START:
            deployment.start()
        wait_until(lambda: device.rows() == truth(source_db) and settled(deployment), f"the truth after: {change}")
        deployment.caught_up()
        assert device.rows() == truth(source_db), change
    assert Device(deployment).rows() == truth(source_db), "a new device has the same"
    assert deployment.kinds().count("snapshot") == 1, "no change had all read again"
