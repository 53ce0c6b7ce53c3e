"""The admin paths over two databases, of which one may be away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headwater.api.admin.route import AdminSettings
from headwater.api.metrics import SourceCollector
from headwater.replication.meters import Totals
from headwater.replication.status import SourceStatuses
from headwater.source.connect import SourceSettings
from headwater.storage.open import open_store
from tests.support.fix_admin import NOWHERE, OPERATOR, AdminEndpoint, running_admin
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb

RULES = """
config: {edition: 3}
streams:
  notes: {auto_subscribe: true, query: SELECT * FROM notes}
"""
ADMIN, SYNC_RULES = "/api/admin/v1", "/api/sync-rules/v1"
AWAY = replace(NOWHERE, tag="crm")


@pytest.fixture
def crm(new_source_db: Callable[[], SourceDb]) -> SourceSettings:
    """A second database of the same server, which operators may read."""
    database = new_source_db()
    database.execute("create table deals (id int primary key, title text); insert into deals values (7, 'deal')")
    return database.settings(tag="crm", debug_api=True)


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id int primary key); insert into notes values (1)")
    made = deploy(RULES)
    made.start()
    made.caught_up()
    return made


def settings_of(deployment: Deployment, other: SourceSettings) -> AdminSettings:
    return AdminSettings((OPERATOR,), deployment.address, (deployment.settings, other))


@pytest.fixture
def admin(deployment: Deployment, crm: SourceSettings) -> Iterator[AdminEndpoint]:
    with running_admin(settings_of(deployment, crm)) as endpoint:
        yield endpoint


def test_each_connection_has_its_status(admin: AdminEndpoint, deployment: Deployment) -> None:
    deployment.source.execute("insert into notes values (2)")
    deployment.caught_up()
    told = admin.post(f"{ADMIN}/diagnostics")
    assert [(each["id"], each["connected"]) for each in told["connections"]] == [("default", True), ("crm", True)]
    default, crm = told["active_sync_rules"]["connections"]
    assert [(each["id"], each["tag"]) for each in (default, crm)] == [("default", "default"), ("crm", "crm")]
    assert (default["initial_replication_done"], crm["initial_replication_done"]) == (True, False)
    assert [table["name"] for table in default["tables"]] == ["notes"]
    assert crm["tables"] == []
    assert "last_lsn" in default
    assert "last_lsn" not in crm
    assert "last_checkpoint_ts" in default
    assert "last_checkpoint_ts" not in crm, "it has committed nothing"
    assert default["slot_name"] != crm["slot_name"]


def test_tables_of_a_wildcard_are_those_of_each_source(admin: AdminEndpoint) -> None:
    rules = RULES.replace("FROM notes", 'FROM "%".public."%"')
    told = admin.post(f"{ADMIN}/validate", sync_rules=rules)["connections"]
    assert {each["id"]: [table["name"] for table in each["tables"]] for each in told} == {
        "default": ["notes"],
        "crm": ["deals"],
    }


def test_schema_is_by_connection(admin: AdminEndpoint) -> None:
    default, crm = admin.post(f"{ADMIN}/schema")["connections"]
    assert (default["id"], crm["id"], crm["tag"]) == ("default", "crm", "crm")
    assert [table["name"] for schema in crm["schemas"] for table in schema["tables"]] == ["deals"]


def test_sql_by_connection(admin: AdminEndpoint) -> None:
    def run(**more: object) -> dict[str, object]:
        found: dict[str, object] = admin.post(f"{ADMIN}/execute-sql", sql={"query": "select title from deals"}, **more)
        return found

    assert run()["error"] == "SQL querying is not enabled", "the first one, which does not allow it"
    answer = run(connection_id="crm")
    assert answer["results"] == {"columns": ["title"], "rows": [["deal"]], "truncated": False}
    assert "no connection nowhere" in str(run(connection_id="nowhere")["error"])


def test_reprocess_of_all_and_of_one(admin: AdminEndpoint, deployment: Deployment) -> None:
    assert [each["id"] for each in admin.post(f"{ADMIN}/reprocess")["connections"]] == ["default", "crm"]
    assert [each["id"] for each in admin.post(f"{ADMIN}/reprocess", connection_id="crm")["connections"]] == ["crm"]
    with deployment.store() as store:
        assert [request.kind for request in store.open_requests("crm")] == ["resync", "resync"]
    admin.refusal("POST", f"{ADMIN}/reprocess", 404, json={"connection_id": ""})
    refused = admin.refusal("POST", f"{ADMIN}/reprocess", 404, json={"connection_id": "nowhere"})
    assert (refused["code"], refused["details"]) == ("HW_6202", "name one of: default, crm")
    assert "slot_name" in admin.post(f"{SYNC_RULES}/reprocess")


def test_status_lists_all_sources(admin: AdminEndpoint) -> None:
    told = admin.get(f"{ADMIN}/status")
    assert [each["source"] for each in told["sources"]] == ["default", "crm"]
    default, crm = told["sources"]
    assert default["position"]
    assert crm["state"] == "stopped"
    assert told["replicator"] is True


def test_source_that_is_away_hides_no_other(deployment: Deployment) -> None:
    with running_admin(settings_of(deployment, AWAY)) as admin:
        told = admin.post(f"{ADMIN}/diagnostics")
        assert [each["connected"] for each in told["connections"]] == [True, False]
        default, crm = told["active_sync_rules"]["connections"]
        assert default["initial_replication_done"] is True
        assert [
            error["message"] for error in told["active_sync_rules"]["errors"] if "default:" in error["message"]
        ] == []
        default, crm = admin.post(f"{ADMIN}/schema")["connections"]
        assert (bool(default["schemas"]), crm["schemas"]) == (True, [])
        validated = admin.post(f"{ADMIN}/validate", sync_rules=RULES)
        assert [each["id"] for each in validated["connections"]] == ["default", "crm"]
        assert [each["source"] for each in admin.get(f"{ADMIN}/status")["sources"]] == ["default", "crm"]
        for probe in ("startup", "readiness", "liveness"):
            assert admin.http.get(f"/probes/{probe}").status_code == 200, probe


def test_two_sources_have_one_series_each(deployment: Deployment, crm: SourceSettings) -> None:
    reader = open_store(deployment.address).open_reader()
    standings = SourceStatuses(reader, (deployment.settings, crm))
    found: dict[str, list[str]] = {}
    for metric in SourceCollector(standings, lambda _: Totals(rows=5)).collect():
        for sample in metric.samples:
            found.setdefault(sample.name, []).append(repr(sorted(sample.labels.items())))
    assert all(len(set(series)) == len(series) for series in found.values()), "no series comes twice"
    for name in (
        "headwater_source_errors_in_a_row",
        "headwater_source_tables_in_resync",
        "powersync_rows_replicated_total",
    ):
        assert len(found[name]) == 2, name
    reader.close()
