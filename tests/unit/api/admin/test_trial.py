"""What is said of a sync config that is being written is what comes true when it is served: for a client, for the
service, and in stored cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headwater.api.admin import trial
from headwater.api.admin.route import AdminSettings
from headwater.api.studio.tokens import AdminToken
from headwater.bulk.contract import JobKind
from headwater.insight import compare
from headwater.storage.contract.parts import BulkRecord
from tests.support.fix_admin import NOWHERE, OPERATOR, SECRET, AdminEndpoint, running_admin
from tests.support.fix_api import make_token
from tests.support.ruled_configs import PROJECTION_EDITED, REQUEST_EDITED, SERVED, STREAM_ADDED, TABLE_ADDED, WRONG
from tests.support.ruled_store import RuledStore

OURS = "/api/headwater/v1"
ADA = AdminToken("the token of Ada in tests", name="Ada")
U1 = {"user": "u1"}
LOST = SERVED.replace("WHERE owner", "WHERE name <> 'name 1' AND owner")
GAINED = SERVED.replace("FROM lists WHERE owner = auth.user_id()", "FROM lists")
RENAMED = SERVED.replace("  lists:", "  mine:")


@pytest.fixture
def admin(ruled: RuledStore) -> Iterator[AdminEndpoint]:
    ruled.serve(SERVED)
    with running_admin(AdminSettings((OPERATOR, ADA), ruled.store.address, (NOWHERE,))) as endpoint:
        yield endpoint


def compared(admin: AdminEndpoint, content: str, **more: Any) -> Any:
    return admin.post(f"{OURS}/compare", content=content, client=U1, **more)


def by_table(told: Any) -> dict[str, tuple[int, ...]]:
    return {
        each["table"]: tuple(each[name] for name in ("now", "then", "gained", "lost", "changed"))
        for each in told["tables"]
    }


@pytest.mark.parametrize(
    ("content", "lists", "todos"),
    [
        (SERVED, (5, 5, 0, 0, 0), (100, 100, 0, 0, 0)),
        (RENAMED, (5, 5, 0, 0, 0), (100, 100, 0, 0, 0)),
        (PROJECTION_EDITED, (5, 5, 0, 0, 0), (100, 100, 0, 0, 100)),
        (LOST, (5, 4, 0, 1, 0), (100, 100, 0, 0, 0)),
        (GAINED, (5, 20, 15, 0, 0), (100, 100, 0, 0, 0)),
    ],
)
def test_comparison_comes_true(
    admin: AdminEndpoint, ruled: RuledStore, content: str, lists: tuple[int, ...], todos: tuple[int, ...]
) -> None:
    told = compared(admin, content)
    assert by_table(told) == {"lists": lists, "todos": todos}
    assert (told["rows"], told["more"]) == (None, False)
    assert "compared with version 1" in told["note"]
    assert any(line.startswith("stream todos") for line in told["plan"])
    admin.post(f"{OURS}/deploy", content=content)
    if any(version.state.value == "processing" for version in ruled.store.versions()):
        ruled.process()
    explained = admin.post(f"{OURS}/explain/user", client=U1)
    assert told["buckets"]["then"] == len(explained["buckets"])
    assert explained["rows"] == lists[1] + todos[1]
    again = compared(admin, content)
    assert by_table(again) == {"lists": (lists[1], lists[1], 0, 0, 0), "todos": (todos[1], todos[1], 0, 0, 0)}


def test_rows_that_differ(admin: AdminEndpoint) -> None:
    told = compared(admin, LOST, table="lists")
    assert told["rows"] == [
        {"id": "l1", "change": "lost", "now": {"id": "l1", "owner": "u1", "name": "name 1"}, "then": None}
    ]
    assert compared(admin, LOST, table="lists", change="gained")["rows"] == []
    assert compared(admin, LOST, table="nothing")["rows"] == []
    changed = compared(admin, PROJECTION_EDITED, table="todos", limit=30)
    assert (len(changed["rows"]), changed["more"]) == (30, True)
    assert {"list_id", "done"} == changed["rows"][0]["now"].keys() - changed["rows"][0]["then"].keys()
    rest = compared(admin, PROJECTION_EDITED, table="todos", offset=90, limit=30)
    assert (len(rest["rows"]), rest["more"]) == (10, False)
    gained = compared(admin, GAINED, table="lists", change="gained")["rows"]
    assert {row["now"] for row in gained} == {None}
    assert {row["then"]["owner"] for row in gained} == {"u0", "u2", "u3"}


def test_comparison_before_anything_is_served(ruled: RuledStore) -> None:
    with running_admin(AdminSettings((OPERATOR,), ruled.store.address, (NOWHERE,))) as admin:
        told = compared(admin, SERVED)
        assert by_table(told)["lists"] == (0, 5, 5, 0, 0)
        assert "nothing: no version is served yet" in told["note"]


def test_comparison_warns_of_the_request(admin: AdminEndpoint) -> None:
    client = {"user": "u1", "subscriptions": [{"stream": "ones", "parameters": {"list": "l1"}}]}
    told = admin.post(f"{OURS}/compare", content=STREAM_ADDED, client=client)
    assert told["warnings"] == ["the rules have no stream ones; did you mean `one`?"]


def test_comparison_of_rows_that_several_buckets_have(admin: AdminEndpoint) -> None:
    again = "  again: {auto_subscribe: true, query: 'SELECT id, name FROM lists WHERE owner = auth.user_id()'}\n"
    told = compared(admin, SERVED + again)
    assert [each.partition(" in several")[0] for each in told["warnings"]] == ["lists: 5 rows with the same id"]
    assert compared(admin, SERVED + again.replace("id, name", "*"))["warnings"] == []


def test_comparison_beyond_memory(admin: AdminEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "MOST_ROWS", 50)
    body = {"content": SERVED, "client": U1}
    assert admin.refusal("POST", f"{OURS}/compare", 422, json=body)["code"] == "HW_6204"
    monkeypatch.undo()
    monkeypatch.setattr(compare, "MOST_CHARACTERS", 500)
    assert compared(admin, SERVED)
    error = admin.refusal("POST", f"{OURS}/compare", 422, json={**body, "table": "todos"})
    assert error["code"] == "HW_6204"


def connected(admin: AdminEndpoint, user: str) -> Any:
    """A device of a user."""
    headers = {"authorization": f"Token {make_token(user, secret=SECRET)}"}
    return admin.http.stream("POST", "/sync/stream", json={"client_id": user}, headers=headers)


def test_cost(admin: AdminEndpoint, ruled: RuledStore) -> None:
    free = admin.post(f"{OURS}/cost", content=SERVED)
    assert (free["same"], free["definitions"], free["rows_evaluated"], free["space_bytes"]) == (True, [], 0, 0)
    assert free["seconds"] is None
    ruled.store.note_job(BulkRecord(JobKind.REPROCESS, "default", "", 1, 4_000, 4_000, 100.0, 102.0))
    with connected(admin, "u1") as first, connected(admin, "nobody") as second:
        lines = [stream.iter_lines() for stream in (first, second)]
        assert all(any("checkpoint_complete" in line for line in each) for each in lines)
        told = admin.post(f"{OURS}/cost", content=PROJECTION_EDITED)
    (definition,) = told["definitions"]
    assert (definition["change"], definition["rows"], definition["buckets"]) == ("changed", 400, 20)
    assert definition["before"].startswith("todos.")
    assert told["space_bytes"] == definition["bytes"] > 0
    assert (told["devices"]["connected"], told["devices"]["affected"], told["devices"]["rows"]) == (2, 1, 100)
    assert 0 < told["devices"]["bytes"] < definition["bytes"]
    assert (told["same"], told["rows_evaluated"], told["seconds"]) == (False, 400, pytest.approx(0.2))
    diff = admin.post(f"{OURS}/diff", content=PROJECTION_EDITED)["definitions"]
    assert definition["bytes"] == next(each for each in diff if each["change"] == "changed")["to_download"]["size"]


def test_cost_of_more_buckets_of_the_same_definition(admin: AdminEndpoint) -> None:
    for more in ("IN (SELECT list_id FROM members)", "IN (SELECT id FROM lists)"):
        content = SERVED.replace("IN (SELECT list_id FROM members WHERE user_id = auth.user_id())", more)
        with connected(admin, "u1") as stream:
            lines = stream.iter_lines()
            assert any("checkpoint_complete" in line for line in lines)
            told = admin.post(f"{OURS}/cost", content=content)
        assert (told["definitions"], told["devices"]["affected"]) == ([], 1)
        assert 300 <= told["devices"]["rows"] <= 320, "some ops clear what was there before"
        assert told["devices"]["bytes"] > 300 * 40
        assert by_table(compared(admin, content))["todos"] == (100, 400, 300, 0, 0)


def test_cost_of_a_new_name(admin: AdminEndpoint) -> None:
    told = admin.post(f"{OURS}/cost", content=RENAMED)
    ((pair),) = told["renamed"]
    assert (pair["before"].partition(".")[0], pair["now"].partition(".")[0]) == ("lists", "mine")
    assert [each["change"] for each in told["definitions"]] == ["added", "removed"]
    assert told["definitions"][0]["rows"] == 20


def test_cost_of_what_is_not_there(admin: AdminEndpoint) -> None:
    told = admin.post(f"{OURS}/cost", content=TABLE_ADDED)
    (definition,) = told["definitions"]
    assert (definition["change"], definition["rows"]) == ("added", None)
    assert "those of public.notes" in told["note"]
    assert admin.refusal("POST", f"{OURS}/cost", 422, json={"content": WRONG})["findings"]


CASE = {
    "name": "Ada's lists",
    "client": {"user": "u1", "parameters": {"a": [1]}},
    "expect": {"lists": {"rows": 5, "has": ["l1"], "lacks": ["l2"]}, "todos": {"has": ["t1"]}},
}


def test_cases(admin: AdminEndpoint) -> None:
    admin.http.headers["authorization"] = f"Token {ADA.text}"
    stored = admin.post(f"{OURS}/cases", case=CASE)
    (listed,) = admin.get(f"{OURS}/cases")["cases"]
    assert listed == stored
    assert (stored["name"], stored["author"], stored["expect"]) == (CASE["name"], "Ada", CASE["expect"])
    assert stored["client"]["parameters"] == {"a": [1]}
    admin.post(f"{OURS}/cases", case={"name": "nobody", "client": {"user": "nobody"}, "expect": {"lists": {"rows": 0}}})
    admin.post(f"{OURS}/cases", case={"name": "only a client", "client": {"user": "u2"}})
    told = admin.post(f"{OURS}/cases/run", content=SERVED)["results"]
    assert [(each["name"], each["passed"]) for each in told] == [
        (CASE["name"], True),
        ("nobody", True),
        ("only a client", True),
    ]
    assert told[0]["rows"] == {"lists": 5, "todos": 100}
    (failed,) = admin.post(f"{OURS}/cases/run", content=LOST, names=[CASE["name"]])["results"]
    assert (failed["passed"], failed["rows"]["lists"]) == (False, 4)
    assert failed["failures"] == ["lists: the client gets 4 rows, not 5", "lists: the client does not get l1"]
    gained = admin.post(f"{OURS}/cases/run", content=GAINED, names=[CASE["name"]])["results"][0]["failures"]
    assert gained == ["lists: the client gets 20 rows, not 5", "lists: the client gets l2"]
    admin.post(f"{OURS}/cases/delete", name="nobody")
    assert [each["name"] for each in admin.get(f"{OURS}/cases")["cases"]] == [CASE["name"], "only a client"]
    assert [each["what"] for each in admin.get(f"{OURS}/changes")["changes"]] == ["cases/delete", *["cases"] * 3]


def test_wrong_cases(admin: AdminEndpoint, ruled: RuledStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (
        {**CASE, "name": ""},
        {**CASE, "name": "a\nb"},
        {**CASE, "client": {"user": "u", "claims": {"sub": "v"}}},
        {**CASE, "expect": {"lists": {"rows": -1}}},
        {**CASE, "expect": {"lists": {"row": 1}}},
        {**CASE, "expects": {}},
    ):
        assert admin.refusal("POST", f"{OURS}/cases", 400, json={"case": wrong})["code"] == "HW_6201", wrong
    monkeypatch.setattr(trial, "MOST_CASES", 1)
    admin.post(f"{OURS}/cases", case=CASE)
    admin.post(f"{OURS}/cases", case={**CASE, "expect": None})
    assert admin.refusal("POST", f"{OURS}/cases", 400, json={"case": {**CASE, "name": "b"}})["code"] == "HW_6201"
    assert len(ruled.store.cases()) == 1
    for path, body in (("delete", {"name": "none"}), ("run", {"content": SERVED, "names": ["none"]})):
        assert admin.refusal("POST", f"{OURS}/cases/{path}", 404, json=body)["code"] == "HW_6202"
    assert admin.refusal("POST", f"{OURS}/cases/run", 422, json={"content": WRONG})["code"] == "PSYNC_R0001"


def test_case_fails_where_a_stream_gives_nothing(admin: AdminEndpoint) -> None:
    client = {"user": "u1", "subscriptions": [{"stream": "gone"}]}
    admin.post(f"{OURS}/cases", case={"name": "a", "client": client})
    (result,) = admin.post(f"{OURS}/cases/run", content=REQUEST_EDITED)["results"]
    assert (result["passed"], result["failures"]) == (False, ["the rules have no stream gone"])
