"""Whatever a stranger with a valid token sends: nothing happens that a table's rule and policies do not allow."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headwater.source.upload.settings import TableRule
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import Uploads, delete, patch, put

EVIL = [
    "notes; drop table notes",
    'notes"; drop table notes; --',
    "notes' or '1'='1",
    "pg_catalog.pg_authid",
    "headwater_upload.clients",
    "",
    "a\0b",
    "half \ud800",
    "".join(str(number) for number in range(20_000)),  # too long for an index, however packed
    "%s",
    "{}",
    "NOTES",
]
GOOD = {"op_id": 1, "op": "PUT", "type": "notes", "id": "1", "data": {"owner": "ann", "title": "x"}}


def crud(*entries: object) -> dict[str, Any]:
    return {"client_id": "c", "transactions": [{"crud": list(entries)}]}


def fingerprint(uploads: Uploads) -> list[tuple[Any, ...]]:
    return uploads.rows("select (select count(*) from notes), (select count(*) from headwater_upload.taken)")


@pytest.mark.parametrize("name", EVIL, ids=ascii)
def test_names_and_ids_are_never_sql(uploads: Uploads, name: str) -> None:
    device = uploads.device()
    for entry in (
        put(name, "1", owner="ann", title="x"),
        delete(name, "1"),
        {"op": "PATCH", "type": "notes", "id": "1", "data": {"title": "x"}, "old": {name: "x"}},
        {"op": name, "type": "notes", "id": "1", "data": {"owner": "ann", "title": "x"}},
    ):
        assert device.parked(entry)["code"] in ("HW_6110", "HW_6111", "HW_6113")
    waits = device.post(device.transaction({"op": "PUT", "type": "notes", "id": "1", "data": {name: "x"}}))
    assert (waits.status_code, "HW_6118" in waits.text) == (503, True)
    sent = device.send(put("notes", name, owner="ann", title=name))
    storable = "\0" not in name and "\ud800" not in name
    assert sent["outcome"] == ("applied" if storable and name and len(name) < 1000 else "parked"), sent
    if sent["outcome"] == "applied":
        assert uploads.rows("select id, title from notes") == [(name, name)]


@pytest.mark.parametrize("client_id", [*EVIL, None, 5, ["c"], {"a": 1}], ids=lambda each: ascii(each)[:40])
def test_client_id_is_bounded_text(uploads: Uploads, client_id: object) -> None:
    response = uploads.post("ann", {"client_id": client_id, "transactions": [{"crud": [GOOD]}]})
    taken = isinstance(client_id, str) and 0 < len(client_id) <= 1024 and client_id.isprintable()
    assert response.status_code == (200 if taken else 400)
    assert fingerprint(uploads) == [(1, 1) if taken else (0, 0)]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"nothing", b"[]", b"5", b'"x"', b"null", b"\xff\xfe", b'{"client_id": "c"',
        b'{"client_id": "c", "transactions": [{"crud": [{"op_id": NaN}]}]}',
        b"[" * 100_000, b'{"a":' * 100_000,
        {"client_id": "c"}, {"client_id": "c", "transactions": {}}, {"client_id": "c", "transactions": [5]},
        {"client_id": "c", "transactions": [{"crud": 5}]},
        crud(None), crud(5), crud("x"), crud([]), crud({}), crud({**GOOD, "op_id": None}),
        *(crud({**GOOD, "op_id": each}) for each in (0, -1, 1.5, "1", True, 2**63, 10**400, 1e30, [1])),
        crud(GOOD, GOOD), crud({**GOOD, "op_id": 2}, GOOD),
        {"client_id": "c", "transactions": [{"crud": [{**GOOD, "op_id": 2}]}, {"crud": [GOOD]}]},
    ],
    ids=lambda body: (body if isinstance(body, bytes) else json.dumps(body).encode())[:70].decode(errors="replace"),
)  # fmt: skip
def test_malformed_body_is_refused(uploads: Uploads, body: object) -> None:
    response = uploads.post("ann", body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "HW_6101")
    assert fingerprint(uploads) == [(0, 0)]


@pytest.mark.parametrize(
    "change",
    [
        {"op": None}, {"op": 5}, {"op": "put"}, {"op": "TRUNCATE"}, {"op": ["PUT"]}, {"op": "__members__"},
        {"type": None}, {"type": 5}, {"type": ["notes"]}, {"id": None}, {"id": 5}, {"id": {"a": 1}},
        {"data": []}, {"data": "x"}, {"data": 5}, {"old": [1]}, {"old": "x"},
        {"data": {"owner": "ann", "title": {"a": {"$ne": 1}}, "n": {"a": 1}}},
        {"data": {"owner": "ann", "title": "x", "n": [1]}},
    ],
    ids=str,
)  # fmt: skip
def test_malformed_entry_is_parked(uploads: Uploads, change: dict[str, object]) -> None:
    body = {"client_id": "c", "transactions": [{"crud": [{**GOOD, **change}]}, {"crud": [{**GOOD, "op_id": 2}]}]}
    answers = uploads.post("ann", body).json()["transactions"]
    assert [each["outcome"] for each in answers] == ["parked", "applied"]
    assert answers[0]["error"]["code"] in ("HW_6110", "HW_6111", "HW_6117")
    assert fingerprint(uploads) == [(1, 2)]


def test_empty_upload_is_done(uploads: Uploads) -> None:
    batches: list[list[object]] = [[], [{"crud": []}], [{"crud": [], "transaction_id": 5}]]
    for transactions in batches:
        response = uploads.post("ann", {"client_id": "c", "transactions": transactions})
        assert (response.status_code, response.json()) == (200, {"transactions": []})


def test_oversized_body_is_not_read(notes_of: Callable[..., Uploads]) -> None:
    uploads = notes_of(max_body_bytes=1 << 20)
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="x" * 900_000))
    response = device.post(device.transaction(put("notes", "2", owner="ann", title="x" * 1_100_000)))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "HW_6002")


def test_transaction_of_thousands_of_entries(uploads: Uploads) -> None:
    device = uploads.device()
    many = [put("notes", str(number), owner="ann", title="x") for number in range(3000)]
    device.applied(*many)
    assert device.send(*many[:10], patch("notes", "nobody", title="x"))["error"]["op_id"] == 3011
    assert uploads.rows("select count(*) from notes") == [(3000,)]


def test_deeply_nested_values(uploads: Uploads) -> None:
    deep: Any = 1
    for _ in range(400):
        deep = [deep]
    device = uploads.device()
    device.parked(put("notes", "1", owner="ann", title="x", n=deep))
    device.applied(put("notes", "1", owner="ann", title="x"))


@pytest.mark.parametrize("header", [None, "", "Token x", "Basic abc", "Token a.b.c"])
def test_token_is_required(uploads: Uploads, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    response = uploads.endpoint.http.post("/upload", content=json.dumps(crud(GOOD)), headers=headers)
    assert response.status_code == 401
    assert fingerprint(uploads) == [(0, 0)]


def test_content_type_must_be_json(uploads: Uploads) -> None:
    headers = {"authorization": f"Token {uploads.token('ann')}", "content-type": "text/plain"}
    response = uploads.endpoint.http.post("/upload", content=json.dumps(crud(GOOD)), headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (415, "PSYNC_S2004")
    assert fingerprint(uploads) == [(0, 0)]


def test_session_is_reset_between_uploads(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
    """A trigger that changes the session must not reach the uploads that follow on the same connection."""
    source_db.execute(
        "create function spoil() returns trigger language plpgsql as $$begin"
        " perform set_config('search_path', 'nowhere', false), set_config('request.jwt.claim.sub', 'ben', false),"
        " set_config('request.jwt.claims', '{\"sub\":\"ben\"}', false), set_config('row_security', 'off', false),"
        " set_config('role', current_user::text, false),"
        " set_config('statement_timeout', '200ms', false), set_config('TimeZone', 'Asia/Tokyo', false);"
        " return new; end$$;"
        "create trigger t after insert on notes for each row when (new.n = 1) execute function spoil();"
        "alter table notes add at timestamptz"
    )
    uploads = notes_of(max_connections=1)
    ann, ben = uploads.device("ann"), uploads.device("ben")
    ann.applied(put("notes", "1", owner="ann", title="x", n=1))
    assert ann.parked(put("notes", "2", owner="ben", title="x"))["sqlstate"] == "42501"
    ann.applied(put("notes", "3", owner="ann", title="x", at="2025-06-01 10:00:00"))
    ben.applied(put("notes", "4", owner="ben", title="x"))
    assert source_db.fetch("select extract(epoch from at)::bigint from notes where id = '3'") == [(1748772000,)]


def test_any_table_and_column_names(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(
        'create schema "My ""%s"""; create table "My ""%s"""."a.b %(x)s" ("the {id}" text primary key, "50 %" int)'
    )
    rule = TableRule('My "%s"', "a.b %(x)s", row_security=False)
    device = uploads_of({"t": rule}).device()
    entry = {"op": "PUT", "type": "t", "id": "1", "data": {"50 %": 5}}
    device.applied(entry)
    device.applied({**entry, "op": "PATCH", "data": {"50 %": 6}})
    assert source_db.fetch('select * from "My ""%s"""."a.b %(x)s"') == [("1", 6)]
    device.applied(delete("t", "1"))


def test_temporary_table_hides_nothing(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
    source_db.execute(
        "create table audit (title text); grant insert on audit to public;"
        "create function note() returns trigger language plpgsql as"
        " $$begin create temp table if not exists audit (title text); insert into audit values (new.title);"
        " return new; end$$;"
        "create trigger t after insert on notes for each row execute function note()"
    )
    uploads = notes_of()
    uploads.device().applied(put("notes", "1", owner="ann", title="x"))
    assert source_db.fetch("select title from audit") == [("x",)]
