"""A deploy through the admin API: what refuses it, what of it is told later, and who changed what."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

import headwater.api.admin.versions
from headwater.api.admin.route import AdminSettings
from headwater.api.studio.tokens import AdminToken
from headwater.replication.versions import deploy_file
from headwater.storage.contract.store import StoreUnreachableError
from headwater.storage.contract.versions import VersionState
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.schema import SeenSchema, SourceSchema
from tests.support.command import Run
from tests.support.fix_admin import NOWHERE, OPERATOR, AdminEndpoint, running_admin
from tests.support.fix_logs import line_of
from tests.support.plain_http import plain_http
from tests.support.ruled_configs import PROJECTION_EDITED, SERVED, STREAM_ADDED, WRONG
from tests.support.ruled_store import RuledStore

OURS = "/api/headwater/v1"
ADA = AdminToken("the token of Ada in tests", name="Ada")


@pytest.fixture
def admin(ruled: RuledStore) -> Iterator[AdminEndpoint]:
    ruled.serve(SERVED)
    with running_admin(AdminSettings((OPERATOR, ADA), ruled.store.address, (NOWHERE,))) as endpoint:
        endpoint.http.headers["authorization"] = f"Token {ADA.text}"
        yield endpoint


UNSENT = SourceSchema.from_json(
    '{"format": 1, "tables": ['
    '{"name": "lists", "columns": {"id": "text"}, "lacks": ["alter publication p add table lists"]},'
    '{"name": "notes", "columns": {"id": "text"}}]}'
)
LISTS = "config: {edition: 3}\nstreams: {s: {query: SELECT id FROM lists}}\n"


def test_note_and_author(admin: AdminEndpoint, headwater_here: Run) -> None:
    version = admin.post(f"{OURS}/deploy", content=STREAM_ADDED, note="for the new list")["version"]
    assert (version["author"], version["message"]) == ("Ada", "for the new list")
    listed = headwater_here("rules", "versions").out
    assert "by command (Ada)" in listed
    assert "“for the new list”" in listed
    back = admin.post(f"{OURS}/rollback", id=1)["version"]
    assert (back["author"], back["message"]) == ("Ada", "back to version 1")


@pytest.mark.parametrize("note", ["\x1b[2J", "a\0b", "x" * 1001, "\x9b31m"])
def test_note_that_would_move_a_terminal(admin: AdminEndpoint, ruled: RuledStore, note: str) -> None:
    body = {"content": STREAM_ADDED, "note": note}
    assert admin.refusal("POST", f"{OURS}/deploy", 400, json=body)["code"] == "HW_6201"
    assert len(ruled.store.versions()) == 1


def test_two_tabs(admin: AdminEndpoint, ruled: RuledStore) -> None:
    gate, statuses = threading.Barrier(2), list[int]()

    def deploy(content: str) -> None:
        with plain_http(admin.port, {"authorization": f"Token {ADA.text}"}) as tab:
            gate.wait(60)
            statuses.append(tab.post(f"{OURS}/deploy", json={"content": content, "expected": 1}).status_code)

    tabs = [threading.Thread(target=deploy, args=(text,)) for text in (STREAM_ADDED, PROJECTION_EDITED)]
    for tab in tabs:
        tab.start()
    for tab in tabs:
        tab.join(60)
    assert sorted(statuses) == [200, 409]
    assert len(ruled.store.versions()) == 2
    late = {"content": SERVED, "expected": 1}
    for path, body in (("deploy", late), ("deploy", {**late, "dry_run": True}), ("rollback", {"id": 1, "expected": 1})):
        error = admin.refusal("POST", f"{OURS}/{path}", 409, json=body)
        assert (error["code"], error["description"]) == ("HW_6211", "version 2 was deployed meanwhile")
    assert admin.post(f"{OURS}/rollback", id=1, expected=2)["new"] is True


def test_dry_run(admin: AdminEndpoint, ruled: RuledStore) -> None:
    told = admin.post(f"{OURS}/deploy", content=STREAM_ADDED, dry_run=True, expected=1)
    assert (told["version"], told["new"]) == (None, True)
    assert admin.post(f"{OURS}/deploy", content=SERVED, dry_run=True)["new"] is False
    error = admin.refusal("POST", f"{OURS}/deploy", 422, json={"content": WRONG, "dry_run": True})
    assert error["code"] == "PSYNC_R0001"
    assert len(ruled.store.versions()) == 1
    assert admin.get(f"{OURS}/changes")["changes"] == []


def test_findings_are_data(admin: AdminEndpoint) -> None:
    found = admin.post(f"{OURS}/validate", content=WRONG)["findings"]
    assert found
    for path in (f"{OURS}/deploy", f"{OURS}/diff", "/api/sync-rules/v1/deploy"):
        findings = admin.refusal("POST", path, 422, json={"content": WRONG})["findings"]
        fatal = [each for each in findings if each["severity"] == "fatal"]
        assert fatal == [each for each in found if each["severity"] == "fatal"]
        assert fatal[0]["place"]["line"] >= 1


def test_tables_that_are_not_sent(admin: AdminEndpoint, ruled: RuledStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headwater.api.admin.versions, "see_schema", lambda *_: SeenSchema(UNSENT, "as seen"))
    for dry_run in (False, True):
        error = admin.refusal("POST", f"{OURS}/deploy", 422, json={"content": LISTS, "dry_run": dry_run})
        assert error["code"] == "HW_8105"
        (finding,) = (each for each in error["findings"] if each["code"] == "HW_R307")
        assert finding["suggestion"] == "run alter publication p add table lists"
    assert len(ruled.store.versions()) == 1
    forced = admin.post(f"{OURS}/deploy", content=LISTS, force=True)
    assert forced["new"] is True
    assert "alter publication" in forced["findings"][0]


def test_cancel(admin: AdminEndpoint, ruled: RuledStore) -> None:
    deployed = admin.post(f"{OURS}/deploy", content=STREAM_ADDED)["version"]
    cancelled = admin.post(f"{OURS}/deploy/cancel", id=deployed["id"])
    assert (cancelled["state"], cancelled["note"]) == ("failed", "cancelled by Ada")
    assert admin.refusal("POST", f"{OURS}/deploy/cancel", 409, json={"id": deployed["id"]})["code"] == "HW_6212"
    assert admin.refusal("POST", f"{OURS}/deploy/cancel", 409, json={"id": 1})["code"] == "HW_6212"
    assert admin.refusal("POST", f"{OURS}/deploy/cancel", 404, json={"id": 99})["code"] == "HW_6202"
    assert [version.state.value for version in ruled.store.versions()] == ["active", "failed"]


def test_changes(admin: AdminEndpoint, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    admin.post(f"{OURS}/deploy", content=STREAM_ADDED, note="why")
    admin.post(f"{OURS}/deploy", content=STREAM_ADDED)  # no change
    admin.refusal("POST", f"{OURS}/deploy", 422, json={"content": WRONG})
    admin.refusal("POST", f"{OURS}/rollback", 404, json={"id": 99})
    admin.post(f"{OURS}/validate", content=SERVED)
    admin.post(f"{OURS}/terminate", user="u1")
    admin.post(f"{OURS}/deploy/cancel", id=2)
    with plain_http(admin.port, {"authorization": f"Token {OPERATOR.text}"}) as unnamed:
        unnamed.post("/api/sync-rules/v1/deploy", json={"content": PROJECTION_EDITED})
        sql = {"query": "select $1", "args": ["a secret"]}
        unnamed.post("/api/admin/v1/execute-sql", json={"sql": sql})
    told = admin.get(f"{OURS}/changes")
    seen = [(each["who"], each["role"], each["what"], each["detail"]) for each in told["changes"]]
    assert seen == [
        ("", "edit", "admin/v1/execute-sql", {"sql": {"query": "select $1", "args": "1 values"}}),
        ("", "edit", "sync-rules/v1/deploy", {"content": f"{len(PROJECTION_EDITED):,} characters"}),
        ("Ada", "edit", "deploy/cancel", {"id": 2}),
        ("Ada", "edit", "terminate", {"user": "u1"}),
        ("Ada", "edit", "deploy", {"content": f"{len(STREAM_ADDED):,} characters", "note": "why", "version": 2}),
    ]
    assert told["more"] is False
    page = admin.get(f"{OURS}/changes", limit=2)
    assert (page["changes"], page["more"]) == (told["changes"][:2], True)
    rest = admin.get(f"{OURS}/changes", before=page["changes"][-1]["id"], limit=3)
    assert (rest["changes"], rest["more"]) == (told["changes"][2:], False)
    lines = [line_of(record) for record in caplog.records if "an operator changed" in record.getMessage()]
    assert len(lines) == 5
    assert "Ada" in lines[0]
    assert "a secret" not in "".join(lines)


def test_change_that_can_not_be_noted_is_answered(
    admin: AdminEndpoint, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: object) -> None:
        raise StoreUnreachableError("the database does not answer")

    monkeypatch.setattr(StoreWriter, "note_change", away)
    assert admin.post(f"{OURS}/deploy", content=STREAM_ADDED)["new"] is True
    assert "the change is in the log alone" in caplog.text


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "before=x", "before=-1", "before=99999999999999999999", "limit=1&limits=2"]
)
def test_odd_query_of_changes(admin: AdminEndpoint, query: str) -> None:
    assert admin.refusal("GET", f"{OURS}/changes?{query}", 400)["code"] == "HW_6201"


def test_roll_back_survives_a_restart(admin: AdminEndpoint, ruled: RuledStore) -> None:
    def start(file: str) -> str:
        """Start the service with this sync config file; returns what is served then."""
        deploy_file(ruled.store, ruled.lease, file)
        if any(version.state is VersionState.PROCESSING for version in ruled.store.versions()):
            ruled.process()
        return next(version.yaml for version in ruled.store.versions() if version.state is VersionState.ACTIVE)

    assert start(SERVED) == SERVED
    assert start(STREAM_ADDED) == STREAM_ADDED
    admin.post(f"{OURS}/rollback", expected=2, note="it was wrong")
    ruled.process()
    for _ in range(2):
        assert start(STREAM_ADDED) == SERVED, "the file did not change"
    assert "it stays until its file changes" in admin.get("/api/admin/v1/status")["served"]
    assert start(PROJECTION_EDITED) == PROJECTION_EDITED
