"""What a device may write: as far as its user's policies, the token and the list of tables go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.source.upload.settings import Operation, TableRule
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import ALL, NOTES, Uploads, delete, patch, put


def test_row_level_security_and_the_token_decide(uploads: Uploads) -> None:
    ann, ben = uploads.device("ann"), uploads.device("ben")
    ann.applied(put("notes", "1", owner="ann", title="hers"))
    assert ben.parked(put("notes", "2", owner="ann", title="in her name"))["sqlstate"] == "42501"
    assert ben.parked(put("notes", "1", owner="ben", title="taken over"))["sqlstate"] == "42501"
    assert ben.parked(patch("notes", "1", title="read by nobody"))["code"] == "HW_6113"
    assert ann.parked(patch("notes", "1", owner="ben"))["sqlstate"] == "42501"
    ben.applied(delete("notes", "1"))  # a row that he does not see is none
    assert uploads.rows(ALL) == [("1", "ann", "hers", None)]


def test_a_delete_that_only_a_policy_keeps_from_being_done_is_put_aside(uploads: Uploads) -> None:
    uploads.db.execute(
        "drop policy mine on notes; create policy s on notes for select using (true);"
        "create policy i on notes for insert with check (true)"
    )
    device = uploads.device()
    device.applied(put("notes", "1", owner="x", title="a"))
    assert device.parked(delete("notes", "1"))["code"] == "HW_6114"
    assert device.parked(patch("notes", "1", title="b"))["code"] == "HW_6114"


def test_claims_come_from_the_token_alone(uploads: Uploads) -> None:
    uploads.db.execute(
        "drop policy mine on notes; create policy team on notes using ("
        "  owner = current_setting('request.jwt.claim.sub', true)"
        "  and body = current_setting('request.jwt.claims', true)::json -> 'app' ->> 'team')"
    )

    def send(op: int, **claims: object) -> str:
        entry = {"op_id": op, **put("notes", str(op), owner="ann", title="x", body="red")}
        body = {"client_id": "c", "transactions": [{"crud": [entry]}], "claims": {"app": {"team": "red"}}, "sub": "ann"}
        return str(uploads.post("ann", body, **claims).json()["transactions"][0]["outcome"])

    assert send(1) == "parked"
    assert send(2, app={"team": "blue"}) == "parked"
    assert send(3, app={"team": "red"}) == "applied"
    assert send(4, app={"team": 'red", "x": "\u0000\ud800'}) == "parked"


def test_only_what_the_list_allows_may_be_written(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(NOTES + "create table secrets (id text primary key); insert into secrets values ('1')")
    source_db.execute("alter table secrets enable row level security; create policy p on secrets using (true)")
    rule = TableRule("public", "notes", frozenset({"owner", "title"}), frozenset({Operation.INSERT}))
    device = uploads_of({"jots": rule}).device()
    device.applied(put("jots", "1", owner="ann", title="x"))
    for entry in (
        put("secrets", "2"),
        delete("secrets", "1"),
        put("notes", "2", owner="ann", title="x"),
        put("public.notes", "2", owner="ann", title="x"),
        put("jots", "2", owner="ann", title="x", n=1),
        put("jots", "2", owner="ann", title="x", nothing=1),
        patch("jots", "1", title="y"),
        delete("jots", "1"),
    ):
        assert device.parked(entry)["code"] == "HW_6110"
    # inserting only, a row that is there is no row to be changed
    assert device.parked(put("jots", "1", owner="ann", title="y"))["sqlstate"] == "23505"
    assert source_db.fetch("select * from secrets") == [("1",)]
    assert source_db.fetch(ALL) == [("1", "ann", "x", None)]


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("drop schema headwater_upload cascade", "HW_6120"),
        ("alter role {role} bypassrls", "HW_6121"),
        ("drop owned by {role}; drop role {role}", "HW_6121"),
        ("alter table notes disable row level security", "HW_6122"),
        ("alter table notes owner to {role}", "HW_6122"),
        ("alter table notes drop constraint notes_pkey", "HW_6122"),
        ("drop table notes", "HW_6122"),
        ("revoke insert on notes from {role}", "HW_6122"),
        ("revoke usage on schema public from public, {role}", "HW_6122"),
    ],
)
def test_what_the_operator_has_to_mend_parks_nothing_and_goes_on_afterwards(
    uploads: Uploads, upload_role: str, statement: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    device = uploads.device()
    sent = device.transaction(put("notes", "1", owner="ann", title="x"))
    uploads.db.execute(statement.format(role=upload_role))
    response = device.post(sent)
    assert (response.status_code, response.json()["error"]["code"]) == (500, code)
    assert code in caplog.text
    if code != "HW_6120":
        assert uploads.rows("select count(*) from headwater_upload.taken") == [(0,)]
        assert uploads.rows("select count(*) from headwater_upload.dead_letters") == [(0,)]
