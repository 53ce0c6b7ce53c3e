"""What operators are answered on our own paths is what the commands say, and a wrong request is told what is wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater.api.admin.powersync
import headwater.api.admin.rules
import headwater.api.admin.versions
import headwater.api.admin.warm
from headwater.api.admin import route
from headwater.api.admin.route import Deadline
from headwater.bulk.contract import BulkProgress
from headwater.oplog.lsn import Lsn
from headwater.replication.meters import Flow
from headwater.replication.status import ReplicationState, ReplicatorHealth, to_json
from headwater.source.readiness.health import SlotHealth
from headwater.storage.contract.versions import Origin
from headwater_rules.schema import SeenSchema, SourceSchema
from tests.support.command import Run
from tests.support.fix_admin import SECRET, AdminEndpoint
from tests.support.fix_api import make_token
from tests.support.ruled_configs import PROJECTION_EDITED, REQUEST_EDITED, SERVED, STREAM_ADDED, WRONG
from tests.support.ruled_store import RuledStore
from tests.support.waiting import wait_until
from tests.unit.api.hostile.requests import ADMIN

OURS = "/api/headwater/v1"


def printed(run: Run, *command: str) -> Any:
    """What a command prints as JSON."""
    outcome = run(*command, "--json")
    assert outcome.code == 0, outcome
    return json.loads(outcome.out)


def test_status(admin: AdminEndpoint, ruled: RuledStore) -> None:
    slot = SlotHealth("s", "extended", active=True, behind=12, held=40, left=None, limit=None, xmin_age=1, xmin_limit=9)
    flow = Flow(stored_at=2.0, asked_at=2.0, log_end=Lsn((1 << 60) + 12), stored=Lsn(1 << 60), behind_since=1.5)
    health = ReplicatorHealth(ReplicationState.STREAMING, 1.0, 2.0, slot=slot, flow=flow)
    ruled.store.report_status(ruled.lease, to_json(health))
    told = admin.get("/api/admin/v1/status")
    (source,) = told["sources"]
    assert (source["source"], source["state"], source["cause"]) == ("default", "streaming", None)
    assert (source["lag_bytes"], source["wal_status"]) == (12, "extended")
    assert 0.5 <= source["lag_seconds"] < 10
    assert source["slot"] == asdict(slot)
    assert [version["state"] for version in told["versions"]] == ["active"]
    assert told["served"] == "version 1 of the sync config"
    assert told["replicator"] is True
    assert told["checkpoint"] > 0


def test_versions(admin: AdminEndpoint, headwater_here: Run) -> None:
    assert admin.get(f"{OURS}/versions")["versions"] == printed(headwater_here, "rules", "versions")
    assert admin.get(f"{OURS}/versions/1")["content"] == SERVED
    assert admin.refusal("GET", f"{OURS}/versions/77", 404)["code"] == "HW_6202"
    assert admin.refusal("GET", f"{OURS}/versions/x", 400)["code"] == "HW_6201"


def test_deploy_and_rollback(admin: AdminEndpoint, ruled: RuledStore) -> None:
    deployed = admin.post(f"{OURS}/deploy", content=STREAM_ADDED)
    assert (deployed["version"]["state"], deployed["new"]) == ("processing", True)
    assert admin.post(f"{OURS}/deploy", content=STREAM_ADDED)["new"] is False
    ruled.process()
    assert [v["state"] for v in admin.get(f"{OURS}/versions")["versions"]] == ["active", "stopped"]
    back = admin.post(f"{OURS}/rollback")
    assert back["version"]["id"] == 3
    assert admin.get(f"{OURS}/versions/3")["content"] == SERVED
    assert admin.post(f"{OURS}/rollback", id=2)["new"] is True
    assert admin.refusal("POST", f"{OURS}/rollback", 404, json={"id": 99})["code"] == "HW_6202"


POSTS = [(path, body) for path, body in ADMIN if body is not None and path.startswith("/api")]


@pytest.mark.parametrize(("path", "body"), POSTS, ids=[path for path, _ in POSTS])
def test_unknown_fields(admin: AdminEndpoint, ruled: RuledStore, path: str, body: dict[str, Any]) -> None:
    error = admin.refusal("POST", path, 400, json={**body, "unheard_of": 2})
    assert (error["code"], error["description"]) == ("HW_6201", "the request has unknown fields: unheard_of")
    for name, value in body.items():
        if isinstance(value, dict):
            error = admin.refusal("POST", path, 400, json={**body, name: {**value, "clams": {"role": "admin"}}})
            assert error["description"] == f"the request has unknown fields: {name}.clams"
    assert len(ruled.store.versions()) == 1, "nothing was deployed"


def test_fields_that_a_client_chooses(admin: AdminEndpoint) -> None:
    client = {"user": "u1", "claims": {"any": {"thing": 1}}, "parameters": {"a": [{"b": 1}]}}
    subscribed = {**client, "subscriptions": [{"stream": "lists", "parameters": {"c": 1}}]}
    assert admin.post(f"{OURS}/explain/user", client=client)
    assert admin.post(f"{OURS}/explain/user", client=subscribed)
    subscribed["subscriptions"] = [{"stream": "lists", "params": {"c": 1}}]
    error = admin.refusal("POST", f"{OURS}/explain/user", 400, json={"client": subscribed})
    assert error["description"] == "the request has unknown fields: client.subscriptions.params"


def test_unknown_query_parameter(admin: AdminEndpoint) -> None:
    error = admin.refusal("GET", f"{OURS}/versions/1?with=text", 400)
    assert error["description"] == "the request has unknown fields: with"


def test_rules_are_compared_with_the_source(
    admin: AdminEndpoint, ruled: RuledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = SourceSchema.from_json(
        '{"format": 1, "tables": [{"name": "lists", "columns": {"id": "text", "owner": "text", "name": "text"}}]}'
    )
    admin_modules = headwater.api.admin.rules, headwater.api.admin.versions, headwater.api.admin.powersync
    for module in (*admin_modules, headwater.api.admin.warm):
        monkeypatch.setattr(module, "see_schema", lambda *_: SeenSchema(schema, "compared with a schema"))
    typo = "config: {edition: 3}\nstreams: {s: {query: SELECT id FROM lists WHERE gone IS NULL}}\n"
    found = admin.post(f"{OURS}/validate", content=typo)
    assert (found["valid"], found["schema"], found["note"]) == (False, True, "compared with a schema")
    assert admin.post(f"{OURS}/validate", content=typo, allow_missing=True)["valid"] is True
    for path in (f"{OURS}/diff", f"{OURS}/deploy", "/api/sync-rules/v1/deploy"):
        error = admin.refusal("POST", path, 422, json={"content": typo})
        assert "HW_R302" in error["details"]
    assert admin.http.post("/api/sync-rules/v1/validate", json={"content": typo}).json()["valid"] is False
    diff = admin.post(f"{OURS}/diff", content=typo, allow_missing=True)
    assert [each["code"] for each in diff["unsent"]] == ["HW_R302"]
    assert len(ruled.store.versions()) == 1
    deployed = admin.post(f"{OURS}/deploy", content=typo, allow_missing=True)
    assert (deployed["new"], deployed["note"]) == (True, "compared with a schema")
    assert "HW_R302" in deployed["findings"][0]


def test_deploy_of_yaml(admin: AdminEndpoint) -> None:
    yaml = {"content-type": "application/yaml; charset=utf-8"}
    response = admin.http.post(f"{OURS}/deploy", content=PROJECTION_EDITED.encode(), headers=yaml)
    assert response.json()["data"]["new"] is True
    assert admin.refusal("POST", f"{OURS}/deploy", 400, content=b"\xff", headers=yaml)["code"] == "HW_6201"
    text = {"content-type": "text/plain"}
    assert admin.refusal("POST", f"{OURS}/deploy", 415, content=b"x", headers=text)["code"] == "PSYNC_S2004"


def test_deploy_of_invalid_rules(admin: AdminEndpoint, ruled: RuledStore) -> None:
    for content in (WRONG, "", "{", "streams: 1"):
        error = admin.refusal("POST", f"{OURS}/deploy", 422, json={"content": content})
        assert (error["code"], error["description"]) == ("PSYNC_R0001", "Sync config parsing failed")
        assert error["details"]
    assert len(ruled.store.versions()) == 1


def test_validate(admin: AdminEndpoint) -> None:
    found = admin.post(f"{OURS}/validate", content=WRONG)
    assert found["valid"] is False
    assert [finding["place"]["line"] for finding in found["findings"]] == [6, 9]
    assert found["schema"] is False
    assert "not compared with the source" in found["note"]
    assert admin.post(f"{OURS}/validate", content=SERVED)["valid"] is True


def test_diff_equals_the_command(admin: AdminEndpoint, headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(STREAM_ADDED)
    told = admin.post(f"{OURS}/diff", content=STREAM_ADDED)
    command = printed(headwater_here, "rules", "diff", "new.yaml")
    for key in ("same", "streams", "definitions", "missing_tables", "one_bucket_per_row", "for_everybody"):
        assert told[key] == command[key], key
    assert told["definitions"][2]["to_download"]["rows"] == 400


@pytest.mark.parametrize("content", [SERVED, REQUEST_EDITED])
def test_preview_equals_the_command(admin: AdminEndpoint, headwater_here: Run, tmp_path: Path, content: str) -> None:
    (tmp_path / "new.yaml").write_text(content)
    told = admin.post(f"{OURS}/preview", content=content, client={"user": "u1"}, rows=2)
    assert told == printed(headwater_here, "rules", "preview", "new.yaml", "--user", "u1", "--rows", "2")
    assert len(told["buckets"]) == 6


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("preview", {"content": SERVED}, "client"),
        ("preview", {"content": 1, "client": {"user": "u"}}, "content"),
        ("preview", {"content": SERVED, "client": {"user": "u", "claims": {"sub": "v"}}}, "another user"),
        ("explain/user", {"client": {"user": "u", "subscriptions": [{}]}}, "stream"),
        ("explain/row", {"client": {"user": "u"}, "table": "t"}, "id"),
        ("diff", [], "array"),
        ("diff", b"{", "JSON"),
        ("diff", b"[" * 100_000, "JSON"),
    ],
)
def test_wrong_body(admin: AdminEndpoint, path: str, body: object, said: str) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    error = admin.refusal("POST", f"{OURS}/{path}", 400, content=content)
    assert error["code"] == "HW_6201"
    assert said in error["description"]


def test_deadline(admin: AdminEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoTime(Deadline):
        def __init__(self, instead: str) -> None:
            super().__init__(instead, -1)

    monkeypatch.setattr("headwater.api.admin.rules.Deadline", NoTime)
    client = {"client": {"user": "u1"}}
    for path, body, command in (
        ("preview", {"content": SERVED, **client}, "rules preview"),
        ("diff", {"content": STREAM_ADDED}, "rules diff"),
        ("explain/user", client, "explain user"),
        ("explain/row", {**client, "table": "lists", "id": "l1"}, "explain row"),
    ):
        error = admin.refusal("POST", f"{OURS}/{path}", 422, json=body)
        assert error["code"] == "HW_6203"
        assert command in error["details"]


@pytest.mark.parametrize(("module", "details"), [("route", ""), ("rules", "ask for fewer rows")])
def test_answer_size_limit(admin: AdminEndpoint, monkeypatch: pytest.MonkeyPatch, module: str, details: str) -> None:
    monkeypatch.setattr(f"headwater.api.admin.{module}.MOST_BYTES", 1_000)
    body = {"content": SERVED, "client": {"user": "u1"}, "rows": 1_000}
    error = admin.refusal("POST", f"{OURS}/preview", 422, json=body)
    assert error["code"] == "HW_6204"
    assert details in ("", error["details"])


def test_rows_beyond_memory_are_not_counted(admin: AdminEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = admin.post(f"{OURS}/explain/user", client={"user": "u1"})
    monkeypatch.setattr("headwater.insight.explain.MOST_COUNTED", 10)
    found = admin.post(f"{OURS}/explain/user", client={"user": "u1"})
    assert (found["rows"], found["ops"], found["size"]) == (None, whole["ops"], whole["size"])
    assert sorted(bucket["rows"] or 0 for bucket in found["buckets"]) == [0, 0, 0, 0, 0, 5]


def test_requests_at_once_are_limited(admin: AdminEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    go, entered = threading.Event(), threading.Semaphore(0)

    def held(*_: object) -> str:
        entered.release()
        go.wait(150)
        raise RuntimeError

    monkeypatch.setattr("headwater.api.admin.versions.AdminSettings.store", held)
    asking = [threading.Thread(target=admin.http.get, args=(f"{OURS}/versions",)) for _ in range(route.RUNNING)]
    for thread in asking:
        thread.start()
    try:
        for _ in asking:
            assert entered.acquire(timeout=60)
        waiting = [threading.Thread(target=admin.http.get, args=(f"{OURS}/versions",)) for _ in range(route.WAITING)]
        for thread in waiting:
            thread.start()
        asking += waiting
        wait_until(lambda: busy(admin), "all places to be taken", 60)
        assert admin.refusal("GET", f"{OURS}/versions", 429)["code"] == "HW_6205"
    finally:
        go.set()
        for thread in asking:
            thread.join(30)


def busy(admin: AdminEndpoint) -> bool:
    """Whether all places are taken: asks with a request that would take one for a moment only."""
    try:
        return admin.http.get(f"{OURS}/versions", timeout=0.2).status_code == 429
    except httpx.TimeoutException:
        return False


def test_versions_are_paged(admin: AdminEndpoint, ruled: RuledStore) -> None:
    last = ruled.store.versions()[-1].id
    for number in range(3):
        ruled.store.deploy(f"{SERVED}# {number}\n", Origin.COMMAND)

    def page(**query: int) -> tuple[list[int], bool]:
        told = admin.get(f"{OURS}/versions", **query)
        return [each["id"] - last for each in told["versions"]], told["more"]

    assert page() == ([3, 2, 1, *range(0, -last, -1)], False)
    assert page(limit=2) == ([3, 2], True)
    assert page(limit=2, before=last + 2) == ([1, 0], last > 1)
    assert page(before=1) == ([], False)
    assert admin.refusal("GET", f"{OURS}/versions", 400, params={"limit": 0})["code"] == "HW_6201"


def test_clients(admin: AdminEndpoint) -> None:
    assert admin.get(f"{OURS}/clients")["clients"] == []
    headers = {"authorization": f"Token {make_token('u1', secret=SECRET)}", "x-user-agent": "sdk/1"}
    body = {"client_id": "phone", "app_metadata": {"app": "7"}}
    with admin.http.stream("POST", "/sync/stream", json=body, headers=headers) as stream:
        lines = stream.iter_lines()
        assert any("checkpoint_complete" in line for line in lines)
        (client,) = admin.get(f"{OURS}/clients")["clients"]
        assert (client["user"], client["client"], client["user_agent"]) == ("u1", "phone", "sdk/1")
        assert client["app_metadata"] == {"app": "7"}
        assert (client["buckets"], client["operations"]) == (6, 111)
        assert client["connected"] < client["token_expires"]


def events(response: httpx.Response) -> Iterator[Any]:
    """The data of server-sent events."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_head_of_progress(admin: AdminEndpoint) -> None:
    answer = admin.http.head(f"{OURS}/progress", timeout=60)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


def test_progress(admin: AdminEndpoint, ruled: RuledStore) -> None:
    def note(state: ReplicationState, progress: BulkProgress | None) -> None:
        ruled.store.report_status(ruled.lease, to_json(ReplicatorHealth(state, 1.0, 2.0, done=progress)))

    with admin.http.stream("GET", f"{OURS}/progress") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        told = events(response)
        assert next(told)["sources"][0]["state"] == "starting", "whoever has the lease has told nothing"
        note(ReplicationState.SNAPSHOT, BulkProgress(10, 100, 1, 4))
        event = next(told)["sources"][0]
        assert (event["state"], event["done"]["rows"], event["done"]["rows_expected"]) == ("snapshotting", 10, 100)
        ruled.store.deploy(STREAM_ADDED, Origin.COMMAND)
        assert [version["state"] for version in next(told)["versions"]] == ["active", "processing"]
        admin.server.handle_exit(15, None)  # what watches does not keep the process from ending
        assert list(told) == []
