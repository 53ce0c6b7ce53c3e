"""What an operator is admin of a user and a row is what that user's device really shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from headwater.api.admin.route import AdminSettings
from tests.support.fix_admin import NOWHERE, OPERATOR, SECRET, AdminEndpoint, running_admin
from tests.support.fix_api import make_token
from tests.support.model_client import ModelClient
from tests.support.ruled_store import INTEGER, TEXT, RuledStore

RULES = """\
config: {edition: 3}
streams:
  own:
    auto_subscribe: true
    query: SELECT * FROM lists WHERE owner = auth.user_id()
  shared:
    auto_subscribe: true
    priority: 1
    query: SELECT id, list_id, title FROM todos WHERE done = 0 AND list_id IN
      (SELECT list_id FROM members WHERE user_id = auth.user_id() AND active = 1)
  finished:
    query: SELECT 'done-' || id AS id, title FROM todos AS archive WHERE done = 1
      AND list_id = subscription.parameter('list')
      AND list_id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())
  everything:
    auto_subscribe: true
    query: SELECT * FROM lists AS all_lists WHERE auth.parameter('role') = 'admin'
  codes:
    auto_subscribe: true
    query: SELECT code AS id, text FROM codes WHERE code IS NOT NULL
"""

USERS = ("u0", "u1", "u2", "u3", "nobody")
CLIENTS: tuple[dict[str, Any], ...] = (
    {},
    {"claims": {"role": "admin"}},
    {"subscriptions": [{"stream": "finished", "parameters": {"list": "l1"}}]},
    {"subscriptions": [{"stream": "finished", "parameters": {"list": "l6"}}, {"stream": "finished"}],
     "include_defaults": False},
)  # fmt: skip


@pytest.fixture
def served(tmp_path: Any) -> Iterator[RuledStore]:
    """Lists, to-dos of which half are done, members of which some are not active, and codes with ids of their own."""
    ruled = RuledStore(tmp_path)
    lists = [[f"l{i}", f"u{i % 4}", f"name {i}"] for i in range(12)]
    pairs = [(i, u) for i in range(12) for u in range(4) if (i * u) % 5 != 1]
    members = [[f"m{i}-{u}", f"l{i}", f"u{u}", str((i + u) % 3 and 1)] for i, u in pairs]
    todos = [[f"t{i}", None if i % 17 == 0 else f"l{i % 12}", f"title {i}", str(i % 2)] for i in range(150)]
    codes = [[str(i), None if i % 5 == 0 else f"c{i // 2}", f"text {i}"] for i in range(40)]
    ruled.create("lists", {"id": TEXT, "owner": TEXT, "name": TEXT}, lists)
    ruled.create("members", {"id": TEXT, "list_id": TEXT, "user_id": TEXT, "active": INTEGER}, members)
    ruled.create("todos", {"id": TEXT, "list_id": TEXT, "title": TEXT, "done": INTEGER}, todos)
    ruled.create("codes", {"number": INTEGER, "code": TEXT, "text": TEXT}, codes)
    ruled.serve(RULES[: RULES.index("  codes:")])
    ruled.serve(RULES)
    yield ruled
    ruled.close()


@pytest.fixture
def admin(served: RuledStore) -> Iterator[AdminEndpoint]:
    with running_admin(AdminSettings((OPERATOR,), served.store.address, (NOWHERE,))) as endpoint:
        yield endpoint


def shown(endpoint: AdminEndpoint, user: str, client: dict[str, Any]) -> dict[tuple[str, str], dict[str, object]]:
    """What a device of the user shows once it is complete."""
    device = ModelClient()
    body = {
        "raw_data": True,
        "streams": {
            "include_defaults": client.get("include_defaults", True),
            "subscriptions": [
                {"stream": each["stream"], "parameters": each.get("parameters"), "override_priority": None}
                for each in client.get("subscriptions", ())
            ],
        },
    }
    headers = {"authorization": f"Token {make_token(user, secret=SECRET, **client.get('claims', {}))}"}
    with endpoint.http.stream("POST", "/sync/stream", json=body, headers=headers) as response:
        assert response.status_code == 200, response.read()
        rest = b""
        for part in response.iter_bytes():
            whole, newline, rest = (rest + part).rpartition(b"\n")
            device.receive(whole + newline)
            if device.completed:
                return device.rows
    raise AssertionError("the stream ended")


def agree(endpoint: AdminEndpoint, trials: int, seed: int) -> tuple[int, int]:
    """Ask about random users and rows. Returns how many rows were in, and out."""
    chance = random.Random(seed)
    cases = [(user, client) for user in USERS for client in CLIENTS]
    devices = [shown(endpoint, user, client) for user, client in cases]
    ids = {
        "lists": [f"l{i}" for i in range(13)],
        "all_lists": [f"l{i}" for i in range(13)],
        "todos": [f"t{i}" for i in range(152)],
        "archive": [f"done-t{i}" for i in range(152)],
        "codes": [f"c{i}" for i in range(21)] + ["3", "5"],
        "none": ["x"],
    }
    included = 0
    for _ in range(trials):
        number = chance.randrange(len(cases))
        (user, client), device = cases[number], devices[number]
        if device and chance.random() < 0.5:
            table, row_id = chance.choice(sorted(device))
        else:
            table = chance.choice(sorted(ids))
            row_id = chance.choice(ids[table])
        found = endpoint.post("/api/headwater/v1/explain/row", client={"user": user, **client}, table=table, id=row_id)
        real = device.get((table, row_id))
        assert found["included"] is (real is not None), (user, client, table, row_id, found)
        assert found["because"]
        if real is None:
            assert found["places"] == []
            assert all(query["because"] for row in found["rows"] for query in row["queries"] if not query["given"])
        else:
            assert real in [place["data"] for place in found["places"]]
            assert any(query["given"] for row in found["rows"] for query in row["queries"])
            assert all(place["op_id"] > 0 for place in found["places"])
            # of the first flush that a store tells of nobody knows where it began
            assert table != "codes" or all(place["lsn"] for place in found["places"])
        included += real is not None
    return included, trials - included


def test_explain_row(admin: AdminEndpoint) -> None:
    included, out = agree(admin, 60, seed=7)
    assert min(included, out) > 10


@pytest.mark.long
def test_explain_a_thousand_rows(admin: AdminEndpoint) -> None:
    included, out = agree(admin, 1_000, seed=random.randrange(10**6))
    assert min(included, out) > 200


def test_explain_user(admin: AdminEndpoint) -> None:
    for user in USERS:
        for client in CLIENTS:
            found = admin.post("/api/headwater/v1/explain/user", client={"user": user, **client})
            assert found["rows"] == len(shown(admin, user, client)) + twice(found), (user, client)
            streams = {stream["name"]: stream for stream in found["streams"]}
            for name, stream in streams.items():
                has = any(reason["stream"] == name for bucket in found["buckets"] for reason in bucket["reasons"])
                assert bool(stream["buckets"]) is has
                assert bool(stream["empty_because"]) is not has


def twice(found: dict[str, Any]) -> int:
    """Rows that two rows of the source give under one id: devices show one of them."""
    return sum(12 for bucket in found["buckets"] if bucket["reasons"][0]["stream"] == "codes")
