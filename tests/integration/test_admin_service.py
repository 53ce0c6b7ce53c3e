"""What operators see of a service at work is there whatever its state is: many tables, a snapshot under way, a source
that is down, a store that is none of ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headwater.api.admin.route import AdminSettings
from headwater.storage.shared.formats import FORMAT_KEY
from headwater.storage.sql.control import set_meta
from tests.support.changed_source import unheard
from tests.support.fix_admin import NOWHERE, OPERATOR, AdminEndpoint, running_admin
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.ruled_store import RuledStore
from tests.support.waiting import wait_until

OURS = "/api/headwater/v1"
RULES = """
config: {edition: 3}
streams:
  notes: {auto_subscribe: true, query: SELECT * FROM notes}
"""
VIEWS = (
    "/api/admin/v1/status",
    *(f"{OURS}/{view}" for view in ("completion", "buckets", "audit", "series", "clients")),
)


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id int primary key, text text)")
    source_db.execute("insert into notes select i, 'note ' || i from generate_series(1, 50) i")
    return deploy(RULES)


@pytest.fixture
def admin(deployment: Deployment) -> Iterator[AdminEndpoint]:
    with running_admin(AdminSettings((OPERATOR,), deployment.address, (deployment.settings,))) as endpoint:
        yield endpoint


def audited(admin: AdminEndpoint, **body: object) -> dict[str, Any]:
    """The outcome of an audit."""
    (asked,) = admin.post(f"{OURS}/audit", **body)["audits"]
    assert (asked["state"], asked["differs"]) == ("waiting", None)

    def found() -> dict[str, Any]:
        audits = {each["id"]: each for each in admin.get(f"{OURS}/audit")["audits"]}
        outcome: dict[str, Any] = audits[asked["id"]]
        return outcome

    wait_until(lambda: found()["state"] in {"done", "failed"}, "the audit to end")
    return found()


def test_audit(admin: AdminEndpoint, deployment: Deployment) -> None:
    deployment.start()
    deployment.caught_up()
    clean = audited(admin)
    assert (clean["state"], clean["differs"], clean["source"]) == ("done", False, "default"), clean
    assert clean["result"]["rows_compared"] == 50
    with unheard(deployment):
        deployment.source.execute("update notes set text = 'changed' where id < 4")
        deployment.caught_up()
    found = audited(admin, tables=["notes"])
    assert (found["differs"], found["tables"]) == (True, ["notes"])
    assert found["result"]["differences"] == {"public.notes": 3}
    assert audited(admin, repair=True)["repair"]
    assert not audited(admin)["differs"]


def test_audit_of_what_is_not_there(admin: AdminEndpoint, deployment: Deployment) -> None:
    deployment.start()
    failed = audited(admin, tables=["<script>"])
    assert (failed["state"], failed["differs"]) == ("failed", None)
    assert "no such table is replicated" in failed["result"]["error"]
    assert admin.refusal("POST", f"{OURS}/audit", 404, json={"sources": ["nowhere"]})["code"] == "HW_6202"
    assert admin.refusal("POST", f"{OURS}/audit", 400, json={"repair": "yes"})["code"] == "HW_6201"


def test_the_same_audit_is_asked_for_once(admin: AdminEndpoint) -> None:
    numbers = [admin.post(f"{OURS}/audit")["audits"][0]["id"] for _ in range(5)]
    assert len({*numbers}) == 1, "no replicator runs that could begin it"
    assert admin.post(f"{OURS}/audit", repair=True)["audits"][0]["id"] not in numbers


def test_views_before_and_while_a_snapshot_runs(admin: AdminEndpoint, deployment: Deployment) -> None:
    for view in VIEWS:
        admin.get(view)
    lock = deployment.source.connection
    deployment.source.execute("create publication headwater for all tables")
    lock.execute("begin; lock table notes in access exclusive mode")
    try:
        deployment.start(publish=False, wait=False)
        wait_until(
            lambda: admin.get("/api/admin/v1/status")["sources"][0]["state"] not in {"stopped", "unknown"},
            "the replicator to begin",
        )
        for view in VIEWS:
            if not view.endswith("completion"):
                admin.get(view)
    finally:
        lock.execute("rollback")


def test_two_hundred_tables(admin: AdminEndpoint, deployment: Deployment) -> None:
    for number in range(200):
        deployment.source.execute(f"create table t{number} (id int primary key, text text)")
    rules = RULES + "".join(f"  s{n}: {{auto_subscribe: true, query: SELECT * FROM t{n}}}\n" for n in range(200))
    assert admin.post(f"{OURS}/validate", content=rules)["valid"]
    deployment.yaml = rules
    deployment.start()
    deployment.caught_up()
    assert len(admin.get(f"{OURS}/completion")["tables"]) == 201
    told = admin.get(f"{OURS}/buckets", limit=500)
    assert len(told["tables"]) == 201
    assert admin.get("/api/admin/v1/status")["sources"][0]["state"] == "streaming"


def test_source_is_down(ruled: RuledStore) -> None:
    with running_admin(AdminSettings((OPERATOR,), ruled.store.address, (NOWHERE,))) as admin:
        told = admin.get(f"{OURS}/completion")
        assert (told["tables"], told["seen"], "127.0.0.1:1" in told["note"]) == ([], None, True)
        (asked,) = admin.post(f"{OURS}/audit")["audits"]
        assert asked["state"] == "waiting"
        for view in VIEWS:
            admin.get(view)


def test_store_of_another_format(ruled: RuledStore) -> None:
    with running_admin(AdminSettings((OPERATOR,), ruled.store.address, (NOWHERE,))) as admin:
        with ruled.store._work() as db, db.transaction():
            set_meta(db, FORMAT_KEY, "9999")
        for view in ("buckets", "audit", "completion"):
            response = admin.http.get(f"{OURS}/{view}")
            assert response.status_code >= 500, view
            assert response.json()["error"]["code"].startswith(("HW_", "PSYNC_")), view
            assert "Traceback" not in response.text
