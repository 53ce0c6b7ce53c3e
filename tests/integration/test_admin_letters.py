"""Operators see parked uploads over the admin API, and settle them, whatever devices put into them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from headwater.api.admin.route import AdminSettings
from headwater.source.upload.settings import UploadSettings
from tests.support.fix_admin import NOWHERE, OPERATOR, AdminEndpoint, running_admin
from tests.support.fix_upload import Uploads, put
from tests.support.ruled_configs import SERVED
from tests.support.ruled_store import RuledStore

OURS = "/api/headwater/v1"
HOSTILE = "</script><img src=x onerror=alert(1)>\u202e'\"; drop table notes; --"
Started = Callable[[UploadSettings | None], AdminEndpoint]


@pytest.fixture
def admin_of(ruled: RuledStore) -> Iterator[Started]:
    """`admin_of(settings)`: an endpoint whose operators see the letters of these uploads."""
    from contextlib import ExitStack

    ruled.serve(SERVED)
    with ExitStack() as stack:
        yield lambda settings: stack.enter_context(
            running_admin(AdminSettings((OPERATOR,), ruled.store.address, (NOWHERE,), upload=settings))
        )


@pytest.fixture
def admin(uploads: Uploads, admin_of: Started) -> AdminEndpoint:
    return admin_of(uploads.settings)


def test_listed_and_shown(uploads: Uploads, admin: AdminEndpoint) -> None:
    assert admin.get(f"{OURS}/letters") == {"letters": [], "more": False}
    device = uploads.device()
    device.parked(put("notes", "1", owner="ann", title="fine", body="hush"), put("notes", "2", owner="ann", title=""))
    told = admin.get(f"{OURS}/letters")
    assert "hush" not in str(told)
    (letter,) = told["letters"]
    assert (letter["user"], letter["client"], letter["source"]) == ("ann", device.client_id, None)
    assert (letter["first_op"], letter["last_op"], letter["op_id"]) == (1, 2, 2)
    assert (letter["code"], letter["sqlstate"], letter["attempts"]) == ("HW_6117", "23514", 1)
    shown = admin.get(f"{OURS}/letter", id=letter["id"])
    assert shown["letter"] == letter
    assert shown["crud"][0]["data"] == {"owner": "ann", "title": "fine", "body": "hush"}


def test_retried(uploads: Uploads, admin: AdminEndpoint) -> None:
    device = uploads.device()
    for number in "12":
        device.parked(put("notes", number, owner="ann", title=""))
    first, second = admin.post(f"{OURS}/letters/retry", ids=["1", "99"])["results"]
    assert (first["outcome"], first["code"], second["outcome"]) == ("refused", "HW_6117", "gone")
    assert [each["attempts"] for each in admin.get(f"{OURS}/letters")["letters"]] == [2, 1]
    uploads.db.execute("alter table notes drop constraint notes_title_check")
    told = admin.post(f"{OURS}/letters/retry", ids=["2", "1", "1"])["results"]
    assert [each["outcome"] for each in told] == ["applied", "applied", "gone"]
    assert uploads.rows("select id from notes order by id") == [("1",), ("2",)]
    assert admin.get(f"{OURS}/letters")["letters"] == []


def test_discarded(uploads: Uploads, admin: AdminEndpoint) -> None:
    uploads.device().parked(put("notes", "1", owner="ann", title=""))
    told = admin.post(f"{OURS}/letters/discard", ids=["1", "1"])["results"]
    assert [each["outcome"] for each in told] == ["discarded", "gone"]
    assert uploads.rows("select payload, claims from headwater_upload.dead_letters") == [(None, None)]
    assert admin.refusal("GET", f"{OURS}/letter", 404, params={"id": "1"})["code"] == "HW_6202"


def test_changes_are_noted_with_their_outcomes(uploads: Uploads, admin: AdminEndpoint) -> None:
    for act in ("retry", "discard"):
        admin.post(f"{OURS}/letters/{act}", ids=["1", "2"])
    assert admin.get(f"{OURS}/changes")["changes"] == [], "there was nothing to do"
    uploads.device().parked(put("notes", "1", owner="ann", title=""))
    for act in ("retry", "discard"):
        admin.post(f"{OURS}/letters/{act}", ids=["1", "99"])
    told = [(each["what"], each["detail"]) for each in admin.get(f"{OURS}/changes")["changes"]]
    assert told == [
        ("letters/discard", {"ids": "2 values", "discarded": 1, "gone": 1}),
        ("letters/retry", {"ids": "2 values", "refused": 1, "gone": 1}),
    ]


def test_hostile_contents_come_as_they_are(uploads: Uploads, admin: AdminEndpoint) -> None:
    device = uploads.device(HOSTILE)
    large = 10**30
    device.parked(put("notes", HOSTILE, owner=HOSTILE, title="", body=HOSTILE, n=large))
    response = admin.http.get(f"{OURS}/letters")
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-content-type-options"] == "nosniff"
    (letter,) = response.json()["data"]["letters"]
    assert letter["user"] == HOSTILE
    shown = json.loads(admin.http.get(f"{OURS}/letter", params={"id": letter["id"]}).content)["data"]
    assert (shown["crud"][0]["id"], shown["crud"][0]["data"]["n"]) == (HOSTILE, large)


@pytest.mark.parametrize("wrong", ["", "0x1", "١", "-1", "1 or 1=1", "9" * 19, ":", "a\x00:1", "1\n", HOSTILE])
def test_names_that_are_none(admin: AdminEndpoint, wrong: str) -> None:
    for path in ("letters?after", "letter?id"):
        name, parameter = path.split("?")
        assert admin.refusal("GET", f"{OURS}/{name}", 400, params={parameter: wrong})["code"] == "HW_6201"
    for act in ("retry", "discard"):
        assert admin.refusal("POST", f"{OURS}/letters/{act}", 400, json={"ids": [wrong]})["code"] == "HW_6201"


@pytest.mark.long
def test_a_hundred_thousand_letters_are_paged(uploads: Uploads, admin: AdminEndpoint) -> None:
    uploads.device().parked(put("notes", "1", owner="ann", title=""))
    columns = "client, first_op, digest, last_op, code, sqlstate, message, payload, claims, state"
    uploads.db.execute(
        f"insert into headwater_upload.dead_letters ({columns})"
        " select client, 1000 + i, sha256(i::text::bytea), 1000 + i, code, sqlstate, message, payload, claims, state"
        " from headwater_upload.dead_letters, generate_series(1, 99999) i"
    )
    seen: list[str] = []
    more = True
    while more:
        after = {"after": seen[-1]} if seen else {}
        page = admin.get(f"{OURS}/letters", limit=1000, **after)
        seen += [each["id"] for each in page["letters"]]
        more = page["more"]
    assert len(seen) == len(set(seen)) == 100_000
    assert admin.refusal("GET", f"{OURS}/letters", 400, params={"limit": 1001})["code"] == "HW_6201"
    assert admin.refusal("POST", f"{OURS}/letters/discard", 400, json={"ids": seen[:101]})["code"] == "HW_6201"


def test_source_is_down(uploads: Uploads, admin_of: Started) -> None:
    admin = admin_of(replace(uploads.settings, login=NOWHERE))
    error = admin.refusal("GET", f"{OURS}/letters", 503)
    assert error["code"] == "HW_2001"
    (told,) = admin.post(f"{OURS}/letters/retry", ids=["1"])["results"]
    assert told["outcome"] == "failed"


def test_records_are_missing(uploads: Uploads, admin: AdminEndpoint) -> None:
    uploads.db.execute("drop schema headwater_upload cascade")
    error = admin.refusal("GET", f"{OURS}/letters", 404)
    assert "source prepare --upload" in str(error)


def test_no_uploads(admin_of: Started) -> None:
    assert admin_of(None).refusal("GET", f"{OURS}/letters", 404)["code"] == "HW_6202"
