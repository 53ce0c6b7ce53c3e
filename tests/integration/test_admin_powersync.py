"""The published admin paths answer in their shapes, with the errors that they name."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from headwater.api.admin.route import AdminSettings
from tests.support.fix_admin import OPERATOR, AdminEndpoint, running_admin
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb

RULES = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes WHERE owner IN (SELECT owner FROM owners WHERE id = auth.user_id())
"""
OTHER = RULES.replace("SELECT *", "SELECT id, body")
WRONG = RULES.replace("auth.user_id()", "auth.user_di()")
ADMIN, SYNC_RULES = "/api/admin/v1", "/api/sync-rules/v1"


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id int primary key, owner text, body varchar(20)[], data bytea, x float8)")
    source_db.execute("create table owners (owner text, id text, primary key (owner, id))")
    source_db.execute("insert into notes select i, 'o', '{a}', 'x', 1.5 from generate_series(1, 5) i")
    return deploy(RULES)


@pytest.fixture
def settings(deployment: Deployment) -> AdminSettings:
    return AdminSettings((OPERATOR,), deployment.address, (deployment.settings,))


@pytest.fixture
def admin(deployment: Deployment, settings: AdminSettings) -> Iterator[AdminEndpoint]:
    deployment.start()
    deployment.caught_up()
    with running_admin(settings) as endpoint:
        yield endpoint


def test_diagnostics_name_source_and_version(admin: AdminEndpoint, deployment: Deployment) -> None:
    told = admin.post(f"{ADMIN}/diagnostics")
    (connection,) = told["connections"]
    settings = deployment.settings
    uri = f"postgresql://127.0.0.1:{settings.port}/{settings.database}"
    assert connection == {"id": "default", "uri": uri, "postgres_uri": uri, "connected": True, "errors": []}
    assert "deploying_sync_rules" not in told
    status = told["active_sync_rules"]
    assert "content" not in status
    assert status["errors"] == []
    (replication,) = status["connections"]
    assert (replication["id"], replication["tag"]) == ("default", "default")
    assert replication["initial_replication_done"] is True
    assert replication["slot_name"].startswith(settings.slot_prefix)
    assert replication["replication_lag_bytes"] >= 0
    assert replication["wal_status"] == "reserved"
    assert replication["last_lsn"]
    assert replication["last_keepalive_ts"].endswith("Z")
    assert replication["tables"] == [
        {"schema": "public", "name": "notes", "replication_id": ["id"], "data_queries": True,
         "parameter_queries": False, "errors": []},
        {"schema": "public", "name": "owners", "replication_id": ["owner", "id"], "data_queries": False,
         "parameter_queries": True, "errors": []},
    ]  # fmt: skip
    asked = admin.post(f"{ADMIN}/diagnostics", sync_rules_content=True)
    assert asked["active_sync_rules"]["content"] == RULES


def test_diagnostics_of_processing_version(admin: AdminEndpoint, deployment: Deployment) -> None:
    deployment.stop()
    assert admin.post(f"{SYNC_RULES}/deploy", content=OTHER)["slot_name"]
    told = admin.post(f"{ADMIN}/diagnostics", sync_rules_content=True)
    assert told["deploying_sync_rules"]["content"] == OTHER
    assert told["deploying_sync_rules"]["connections"][0]["initial_replication_done"] is False
    current = admin.get(f"{SYNC_RULES}/current")
    assert (current["current"]["content"], current["next"]["content"]) == (RULES, OTHER)
    for path in (f"{ADMIN}/reprocess", f"{SYNC_RULES}/reprocess"):
        assert admin.refusal("POST", path, 409, json={})["code"] == "PSYNC_S4106"


def test_diagnostics_name_unreadable_table(deployment: Deployment, source_db: SourceDb) -> None:
    settings = AdminSettings((OPERATOR,), deployment.address, (deployment.settings,))
    source_db.execute("create table keyless (id int)")
    source_db.execute("create table unpublished (id int primary key)")
    source_db.execute("create publication headwater for table notes, keyless")
    text = """
config: {edition: 3}
streams:
  all:
    auto_subscribe: true
    queries:
      - SELECT * FROM notes
      - SELECT * FROM keyless
      - SELECT * FROM unpublished
      - SELECT * FROM missing
"""
    with running_admin(settings) as admin:
        told = admin.post(f"{ADMIN}/validate", sync_rules=text)
        tables = {table["name"]: table for table in told["connections"][0]["tables"]}
        assert told["connections"][0]["slot_name"] == ""
        assert told["connections"][0]["initial_replication_done"] is False
        assert tables["notes"]["errors"] == []
        assert tables["missing"]["errors"] == [{"level": "warning", "message": 'Table "public"."missing" not found.'}]
        assert [error["level"] for error in tables["keyless"]["errors"]] == ["fatal"]
        assert "no replication id columns" in tables["keyless"]["errors"][0]["message"]
        (error,) = tables["unpublished"]["errors"]
        assert error["level"] == "fatal"
        assert "ALTER PUBLICATION" in error["message"]
        assert len(told["errors"]) == 5  # one of them that `*` of notes has a blob
        assert any(each["level"] == "fatal" and "no table `missing`" in each["message"] for each in told["errors"])
        typo = text.replace("SELECT * FROM notes", "SELECT * FROM notes WHERE delted_at IS NULL")
        told = admin.post(f"{ADMIN}/validate", sync_rules=typo)
        (error,) = [each for each in told["errors"] if "delted_at" in each["message"]]
        assert error["level"] == "fatal"
        assert typo[error["location"]["start_offset"] : error["location"]["end_offset"]] == "delted_at"
        checked = admin.http.post(f"{SYNC_RULES}/validate", json={"content": typo}).json()
        assert checked["valid"] is False
        assert any("delted_at" in each for each in checked["errors"])


def test_validate_names_position_of_error(admin: AdminEndpoint) -> None:
    told = admin.post(f"{ADMIN}/validate", sync_rules=WRONG)
    assert told["connections"] == []
    (error,) = told["errors"]
    assert error["level"] == "fatal"
    location = error["location"]
    assert "user_di" in WRONG[location["start_offset"] : location["end_offset"]]
    assert admin.refusal("POST", f"{ADMIN}/validate", 400, json={})["code"] == "HW_6201"


def test_unreachable_source_is_named(deployment: Deployment) -> None:
    away = replace(deployment.settings, port=1, connect_timeout=2)
    deployment.start()
    with running_admin(AdminSettings((OPERATOR,), deployment.address, (away,))) as admin:
        told = admin.post(f"{ADMIN}/diagnostics")
        (connection,) = told["connections"]
        assert connection["connected"] is False
        assert connection["errors"][0]["level"] == "fatal"
        tables = told["active_sync_rules"]["connections"][0]["tables"]
        assert [table["errors"] for table in tables] == [[{"level": "fatal", "message": "connection failed"}]] * 2
        assert admin.refusal("POST", f"{ADMIN}/schema", 503, json={})["code"] == "HW_2001"


def test_schema_of_source(admin: AdminEndpoint) -> None:
    told = admin.post(f"{ADMIN}/schema")
    assert (told["defaultConnectionTag"], told["defaultSchema"]) == ("default", "public")
    (connection,) = told["connections"]
    assert (connection["id"], connection["tag"]) == ("default", "default")
    (public,) = connection["schemas"]
    tables = {table["name"]: table["columns"] for table in public["tables"]}
    assert tables["notes"] == [
        {"name": "id", "sqlite_type": 4, "type": "integer", "internal_type": "integer", "pg_type": "int4"},
        {"name": "owner", "sqlite_type": 2, "type": "text", "internal_type": "text", "pg_type": "text"},
        {"name": "body", "sqlite_type": 2, "type": "character varying(20)[]",
         "internal_type": "character varying(20)[]", "pg_type": "varchar[]"},
        {"name": "data", "sqlite_type": 1, "type": "bytea", "internal_type": "bytea", "pg_type": "bytea"},
        {"name": "x", "sqlite_type": 8, "type": "double precision", "internal_type": "double precision",
         "pg_type": "float8"},
    ]  # fmt: skip


def test_reprocess_compares_all_tables(admin: AdminEndpoint, deployment: Deployment) -> None:
    slot = admin.get(f"{SYNC_RULES}/current")["current"]["slot_name"]
    assert admin.post(f"{ADMIN}/reprocess") == {"connections": [{"id": "default", "tag": "default", "slot_name": slot}]}
    assert admin.post(f"{SYNC_RULES}/reprocess") == {"slot_name": slot}
    refused = admin.refusal("POST", f"{SYNC_RULES}/reprocess", 400, json={"tables": []})
    assert refused["code"] == "HW_6201"
    with deployment.store() as store:
        assert [request.kind for request in store.open_requests("default")] in (
            ["resync", "resync"], ["resync"], [],
        )  # fmt: skip


def test_reprocess_without_active_version(settings: AdminSettings) -> None:
    with running_admin(settings) as admin:
        for path in (f"{ADMIN}/reprocess", f"{SYNC_RULES}/reprocess"):
            assert admin.refusal("POST", path, 422, json={})["code"] == "PSYNC_S4104"
        assert admin.refusal("GET", f"{SYNC_RULES}/current", 422)["code"] == "PSYNC_S4104"


def test_deploy_as_json_and_yaml(admin: AdminEndpoint, deployment: Deployment) -> None:
    slot = admin.get(f"{SYNC_RULES}/current")["current"]["slot_name"]
    yaml = {"content-type": "application/yaml"}
    response = admin.http.post(f"{SYNC_RULES}/deploy", content=OTHER.encode(), headers=yaml)
    assert (response.status_code, response.json()) == (200, {"data": {"slot_name": slot}})
    deployment.yaml = OTHER
    error = admin.refusal("POST", f"{SYNC_RULES}/deploy", 422, json={"content": WRONG})
    assert (error["code"], error["description"]) == ("PSYNC_R0001", "Sync config parsing failed")
    assert "user_di" in error["details"]


def test_deploy_refused_with_config_file(settings: AdminSettings) -> None:
    with running_admin(replace(settings, from_file=True)) as admin:
        error = admin.refusal("POST", f"{SYNC_RULES}/deploy", 422, json={"content": OTHER})
        assert error["code"] == "PSYNC_S4105"


def test_validation_of_deploy_has_no_wrapper(admin: AdminEndpoint) -> None:
    response = admin.http.post(f"{SYNC_RULES}/validate", json={"content": RULES})
    told = response.json()
    assert response.text.startswith("{\n")
    assert told["valid"] is True
    assert [table["name"] for table in told["source_tables"]] == ["notes", "owners"]
    assert told["data_tables"] == ["notes"]
    assert [each["streams"] for each in told["bucket_definitions"]] == [["notes"]]
    wrong = admin.http.post(f"{SYNC_RULES}/validate", json={"content": WRONG}).json()
    assert (wrong["valid"], len(wrong["errors"])) == (False, 1)
    current = admin.http.get(f"{SYNC_RULES}/current")
    assert current.text.startswith('{\n  "data": {')
    assert current.json()["data"]["current"]["bucket_definitions"] == told["bucket_definitions"]
    assert current.json()["data"]["next"] is None


@pytest.fixture
def readable(deployment: Deployment) -> Iterator[AdminEndpoint]:
    """An endpoint that lets operators read the source by SQL."""
    open_to_sql = replace(deployment.settings, debug_api=True)
    with running_admin(AdminSettings((OPERATOR,), deployment.address, (open_to_sql,))) as endpoint:
        yield endpoint


def sql(admin: AdminEndpoint, query: str, *args: object, **more: object) -> Any:
    return admin.post(f"{ADMIN}/execute-sql", sql={"query": query, "args": list(args)}, **more)


def test_execute_sql_needs_permission(admin: AdminEndpoint) -> None:
    told = sql(admin, "select 1")
    assert told == {
        "success": False,
        "results": {"columns": [], "rows": [], "truncated": False},
        "error": "SQL querying is not enabled",
    }


def test_execute_sql_only_reads(readable: AdminEndpoint, source_db: SourceDb) -> None:
    query = "select id, owner, data, x, null, '{\"a\": 1}'::jsonb from notes where id = $1 or owner = $2"
    told = sql(readable, query, 2, "z")
    assert told["success"] is True
    assert told["results"]["rows"] == [[2, "o", "78", 1.5, None, '{"a": 1}']]
    assert told["results"]["columns"][:3] == ["id", "owner", "data"]
    many = sql(readable, "select generate_series(1, 100000000)")["results"]
    assert (len(many["rows"]), many["truncated"]) == (1_000, True)
    for query in (
        "insert into notes (id) values (99) returning id",
        "with gone as (delete from notes returning id) select * from gone",
        "delete from notes",
        "select 1; delete from notes",
        "select 1; commit; delete from notes",
        "select nextval('s')",
        "select setval('s', 5)",
        "do $$ begin delete from notes; end $$",
        "copy notes to program 'true'",
        "drop table notes",
        "set transaction read write",
        "commit",
        "",
        "select '\0'",
        "nonsense",
    ):
        source_db.execute("create sequence if not exists s")
        found = sql(readable, query)
        assert found["success"] is False, query
        assert found["error"]
    left = "select (select count(*) from notes), (select count(*) from pg_largeobject_metadata)"
    assert source_db.connection.execute(left).fetchall() == [(5, 0)]
    assert sql(readable, "select 1", connection_id="default")["success"] is True
    assert "no connection other" in sql(readable, "select 1", connection_id="other")["error"]
    assert readable.refusal("POST", f"{ADMIN}/execute-sql", 400, json={"sql": {}})["code"] == "HW_6201"


HARMFUL = (
    "select pg_drop_replication_slot('kept')",
    "select pg_replication_slot_advance('kept', pg_current_wal_lsn())",
    "select pg_catalog.pg_logical_slot_get_changes('kept', null, null)",
    "select pg_create_physical_replication_slot('another')",
    "select pg_terminate_backend({pid})",
    "select PG_Cancel_Backend /* or */ -- is it?\n ({pid})",
    'select "pg_terminate_backend"({pid})',
    'select U&"pg\\005fterminate_backend"({pid})',
    "select treat({pid} as pg_terminate_backend)",
    "select 1 limit length(pg_terminate_backend({pid})::text)",
    "values (pg_terminate_backend({pid}))",
    "select sum(1) over (rows length(pg_terminate_backend({pid})::text) preceding)",
    "select * from notes where pg_terminate_backend({pid})",
    "select * from notes order by pg_terminate_backend({pid})",
    "select 1) z(a) cross join (select pg_terminate_backend({pid})",
    "select query_to_xml('select pg_' || 'terminate_backend({pid})', true, true, '')",
    "select set_config('statement_timeout', '0', false)",
    "select set_config('role', 'none', false)",
    "select pg_advisory_lock(1)",
    "select pg_try_advisory_xact_lock(1)",
    "select pg_reload_conf()",
    "select pg_rotate_logfile()",
    "select pg_switch_wal()",
    "select pg_logical_emit_message(false, 'headwater', 'x')",
    "select pg_read_file('PG_VERSION')",
    "select pg_stat_reset()",
    "select pg_notify('a', 'b')",
    "select nextval('s')",
    "select pg_sleep(600)",
    "select lo_create(0)",
    "select lo_import('/etc/passwd')",
    "select unhinged(1)",
    "select app.hidden()",
    "select owner(row('app'))",
    "select \"app\" . owner('a')",
    "select 1 === 1",
    'select "un-hinged"(1)',
    'select "an app"."un-hinged"(1)',
    "select * from crosstab($1) as t(a text, b text)",
    "select * from app.pivot('select 1, 2, pg_' || 'terminate_backend({pid})') as t(a text, b text)",
    "select * from connectby('(select pg_' || 'terminate_backend({pid})::text a, 1 b) t', 'a', 'b', '1', 0) t(a text)",
)
"""Calls that change something although the transaction only reads, in every place and way of writing a call."""


def test_execute_sql_is_read_only_for_superuser(readable: AdminEndpoint, source_db: SourceDb) -> None:
    source_db.execute("create sequence s; create schema app")
    source_db.execute("create function unhinged(int) returns int language sql as 'select $1'")
    source_db.execute("create function app.owner(text) returns text language sql as 'select $1'")
    source_db.execute("create function app.hidden() returns int language sql as 'select 1'")
    source_db.execute("create function same(int, int) returns bool language sql as 'select $1 = $2'")
    source_db.execute('create schema "an app"')
    for name in ('"un-hinged"', '"an app"."un-hinged"'):
        source_db.execute(f"create function {name}(int) returns int language sql as 'select $1'")
    if source_db.fetch("select from pg_available_extensions where name = 'tablefunc'"):
        pivot = "app.pivot(text) returns setof record language c stable as '$libdir/tablefunc', 'crosstab'"
        source_db.execute(f"create extension tablefunc; create function {pivot}")
    source_db.execute("create operator === (function = same, leftarg = int, rightarg = int)")
    source_db.execute("select pg_create_physical_replication_slot('kept', true)")
    before = source_db.fetch("select restart_lsn from pg_replication_slots where slot_name = 'kept'")
    try:
        with psycopg.connect(source_db.dsn) as victim:
            pid = victim.info.backend_pid
            for query in HARMFUL:
                found = sql(readable, query.replace("{pid}", str(pid)))
                assert found["success"] is False, query
                assert found["error"], query
            assert "pg_terminate_backend" in sql(readable, f"select pg_terminate_backend({pid})")["error"]
            assert victim.execute("select 1").fetchone() == (1,)
            assert source_db.fetch("select restart_lsn from pg_replication_slots where slot_name = 'kept'") == before
            assert source_db.fetch("select count(*) from pg_replication_slots where slot_name = 'another'") == [(0,)]
            for query in (
                "select now(), random(), gen_random_uuid(), clock_timestamp(), current_setting('wal_level')",
                "select slot_name, active from pg_replication_slots",
                "select pid, state from pg_stat_activity; ",
                "select pg_size_pretty(pg_total_relation_size('notes')), pg_current_wal_lsn()",
                "select count(*) filter (where id > 1), max(x) from notes group by owner -- of each",
                "with a as (select * from notes) select a, a.*, a.owner as id from a order by 1 limit 2",
                "table notes",
                "values (1, 'a'), (2, 'b')",
                "select from notes",
                "select owner from notes -- as a function is called, of another schema",
            ):
                assert sql(readable, query)["success"] is True, (query, sql(readable, query))
            assert sql(readable, "select $1::text", "pg_terminate_backend")["results"]["rows"] == [
                ["pg_terminate_backend"]
            ]
    finally:
        source_db.execute("select pg_drop_replication_slot('kept')")


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("select repeat('x', 100000000)", 0),
        ("select n, repeat(n::text, 100000000) from generate_series(1, 9) n", 0),
        ("select array_fill(1, array[3000000])", 0),
        ("select repeat('x', 3000000) from generate_series(1, 100)", 1),
        ("select 1, convert_to(repeat('x', 50000000), 'UTF8')", 0),
        (f"select {', '.join(['n::char(10000000)'] * 20)} from generate_series(1, 3) n", 0),
    ],
)
def test_execute_sql_limits_rows_read(
    readable: AdminEndpoint, monkeypatch: pytest.MonkeyPatch, query: str, rows: int
) -> None:
    monkeypatch.setattr("headwater.api.admin.powersync_sql.SECONDS", 120)
    sql(readable, "select 1")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = sql(readable, query)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (found["success"], len(found["results"]["rows"]), found["results"]["truncated"]) == (True, rows, True)
    assert after - before < 80_000, "kilobytes"


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("repeat('[', 3000) || repeat(']', 3000))::json", "[" * 3000 + "]" * 3000),
        ("repeat('9', 5000))::json", "9" * 5000),
        ("""'{"a":1e9999,"a":"\\ud800"}')::json""", '{"a":1e9999,"a":"\\ud800"}'),
        ("'infinity')::timestamptz", "infinity"),
        ("'0044-03-15 BC')::date", "0044-03-15 BC"),
        ("'24:00')::time", "24:00:00"),
        ("'178000000 years')::interval", "178000000 years"),
        ("'[2024-01-01,infinity]')::daterange", "[2024-01-01, infinity]"),
    ],
)
def test_execute_sql_values_without_python_type(readable: AdminEndpoint, value: str, told: str) -> None:
    assert sql(readable, f"select ({value}")["results"]["rows"] == [[told]]


def test_execute_sql_times_out(readable: AdminEndpoint, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.api.admin.powersync_sql.SECONDS", 1)
    assert "timeout" in sql(readable, "select count(*) from generate_series(1, 1000000000000)")["error"]
    with psycopg.connect(source_db.dsn) as holder:
        holder.execute("lock table notes")
        assert "timeout" in sql(readable, "select * from notes")["error"]


UNKNOWN = {
    "in the list": ("SELECT id, ownr FROM notes", "ownr"),
    "in a condition": ("SELECT * FROM notes WHERE ownr = auth.user_id()", "ownr"),
    "of an alias": ("SELECT n.ownr FROM notes AS n", "ownr"),
    "of a subquery": ("SELECT * FROM notes WHERE id IN (SELECT nid FROM owners WHERE u = auth.user_id())", "nid"),
    "in a function": ("SELECT id, upper(ownr) AS o FROM notes", "ownr"),
}


@pytest.mark.parametrize("query", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another error"])
def test_unknown_columns_have_a_place(admin: AdminEndpoint, query: tuple[str, str], beside: bool) -> None:
    text = f"config: {{edition: 3}}\nstreams:\n  one:\n    query: {query[0]}\n"
    if beside:
        text += "  two:\n    query: SELECT * FROM notes WHERE owner = auth.user_di()\n"
    told = admin.post(f"{ADMIN}/validate", sync_rules=text)["errors"]
    places = [text[each["location"]["start_offset"] : each["location"]["end_offset"]] for each in told]
    assert query[1] in {place.rpartition(".")[2] for place in places}
    assert any("user_di" in place for place in places) is beside
