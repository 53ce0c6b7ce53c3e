"""Editors of rules are told what the source has, as rules name it, and each such name is right."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from headwater.api.admin.route import AdminSettings
from tests.support.fix_admin import NOWHERE, OPERATOR, AdminEndpoint, running_admin
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.waiting import wait_until

OURS = "/api/headwater/v1"
RULES = """
config: {edition: 3}
tables:
  totals: {query: "SELECT id, count(*) AS n FROM notes GROUP BY id", key: id, refresh: {every: 5m}}
streams:
  notes: {auto_subscribe: true, query: SELECT * FROM notes}
  totals: {auto_subscribe: true, query: SELECT * FROM totals}
"""
HOSTILE = '<img src=x onerror="alert(1)">'


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute('create table notes (id int primary key, "createdAt" timestamptz, "select" text, secret bytea)')
    source_db.execute("create schema sales; create table sales.orders (id uuid primary key)")
    source_db.execute(f"""create table "{HOSTILE.replace('"', '""')}" (id int primary key); create table "Upper" ()""")
    source_db.execute("create view open_notes as select * from notes")
    made = deploy(RULES)
    made.start()
    made.caught_up()
    return made


@pytest.fixture
def admin(deployment: Deployment) -> Iterator[AdminEndpoint]:
    with running_admin(AdminSettings((OPERATOR,), deployment.address, (deployment.settings, NOWHERE_TOO))) as endpoint:
        yield endpoint


NOWHERE_TOO = NOWHERE.__class__(host="127.0.0.1", port=1, database="crm", user="app", sslmode="disable", tag="crm")


def test_words(admin: AdminEndpoint) -> None:
    told = admin.get(f"{OURS}/completion")
    tables = {table["name"]: table for table in told["tables"]}
    hostile = '"' + HOSTILE.replace('"', '""') + '"'
    assert {"notes", "sales.orders", hostile, '"Upper"', "open_notes", "totals"} <= tables.keys()
    assert [(each["name"], each["type"], each["values"]) for each in tables["notes"]["columns"]] == [
        ("id", "integer", "integer"),
        ('"createdAt"', "timestamp with time zone", "text"),
        ('"select"', "text", "text"),
        ("secret", "bytea", "blob"),
    ]
    assert (tables["totals"]["kind"], tables["open_notes"]["kind"]) == ("computed", "a view")
    assert [column["name"] for column in tables["totals"]["columns"]] == ["id", "n"]
    assert "not with those of source crm" in told["note"]
    assert told["seen"] > 0
    assert {"upper", "st_x"} <= {word["name"] for word in told["functions"]}
    assert "auth.user_id()" in [word["signature"] for word in told["parameters"]]


def test_every_name_can_be_written_so(admin: AdminEndpoint) -> None:
    for table in admin.get(f"{OURS}/completion")["tables"]:
        columns = ", ".join(column["name"] for column in table["columns"] if column["values"] != "blob") or "*"
        query = f"SELECT {columns} FROM {table['name']} AS t"
        content = f"config: {{edition: 3}}\nstreams:\n  s:\n    query: |\n      {query}\n"
        if table["kind"] == "computed":
            content += RULES[RULES.index("tables:") : RULES.index("streams:")]
        found = admin.post(f"{OURS}/validate", content=content)["findings"]
        codes = {each["code"] for each in found if each["severity"] == "fatal"}
        assert not codes, (query, found)


def test_a_new_column_is_seen_soon(admin: AdminEndpoint, deployment: Deployment) -> None:
    content = RULES.replace("SELECT * FROM notes}", '"SELECT * FROM notes WHERE later = auth.user_id()"}')
    told = admin.post(f"{OURS}/validate", content=content)
    assert not told["valid"], (told, content)
    deployment.source.execute("alter table notes add later text")
    wait_until(lambda: admin.post(f"{OURS}/validate", content=content)["valid"], "the column is seen")


def test_client_schema(admin: AdminEndpoint) -> None:
    told = admin.get(f"{OURS}/client-schema", language="dart")
    assert "Column.integer('n')" in told["text"]
    assert told["language"] == "dart"
    assert admin.get(f"{OURS}/client-schema", language="js") == admin.get(f"{OURS}/client-schema")
    refusal = admin.refusal("GET", f"{OURS}/client-schema", 400, params={"language": "<script>"})
    assert refusal["code"] == "HW_6201"
    assert "kotlin" in str(refusal)


def test_nothing_served(new_source_db: Callable[[], SourceDb], deploy: Deploy) -> None:
    waiting = deploy(RULES)
    with running_admin(AdminSettings((OPERATOR,), waiting.address, (waiting.settings,))) as endpoint:
        assert endpoint.refusal("GET", f"{OURS}/client-schema", 422)["code"] == "PSYNC_S4104"
        assert endpoint.get(f"{OURS}/completion")["tables"] == []


def test_config_schema(admin: AdminEndpoint) -> None:
    assert admin.get(f"{OURS}/config-schema")["title"] == "Headwater sync config"
