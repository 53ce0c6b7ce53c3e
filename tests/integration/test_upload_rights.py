"""What a device may write: as far as its user's policies, the token and the list of tables go."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from headwater.source.upload.settings import Conflict, Operation, TableRule
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import ALL, NOTES, Uploads, delete, patch, put
from tests.support.waiting import wait_until


def test_policies_and_token_decide(uploads: Uploads) -> None:
    ann, ben = uploads.device("ann"), uploads.device("ben")
    ann.applied(put("notes", "1", owner="ann", title="hers"))
    assert ben.parked(put("notes", "2", owner="ann", title="in her name"))["sqlstate"] == "42501"
    assert ben.parked(put("notes", "1", owner="ben", title="taken over"))["sqlstate"] == "23505"
    assert ben.parked(patch("notes", "1", title="read by nobody"))["code"] == "HW_6113"
    assert ann.parked(patch("notes", "1", owner="ben"))["sqlstate"] == "42501"
    ben.applied(delete("notes", "1"))  # a row that he does not see is none
    assert uploads.rows(ALL) == [("1", "ann", "hers", None)]


def test_delete_kept_by_policy_is_parked(uploads: Uploads) -> None:
    uploads.db.execute(
        "drop policy mine on notes; create policy s on notes for select using (true);"
        "create policy i on notes for insert with check (true)"
    )
    device = uploads.device()
    device.applied(put("notes", "1", owner="x", title="a"))
    assert device.parked(delete("notes", "1"))["code"] == "HW_6114"
    assert device.parked(patch("notes", "1", title="b"))["code"] == "HW_6114"


SHARED = """
create table lists (id text primary key, name text);
create table members (list_id text, user_id text, primary key (list_id, user_id));
create function sub() returns text language sql stable as $$select current_setting('request.jwt.claim.sub', true)$$;
create function is_member(list text) returns boolean language sql stable security definer as
  $$select exists (select from members where list_id = list and user_id = sub())$$;
alter table lists enable row level security;
alter table members enable row level security;
create policy make on lists for insert with check (true);
create policy see on lists for select using (is_member(id));
create policy change on lists for update using (is_member(id));
create policy mine on members using (user_id = sub());
"""


@pytest.mark.parametrize("conflict", [Conflict.LAST_WRITE_WINS, Conflict.REJECT_CHANGED])
def test_insert_policies_of_new_row(
    source_db: SourceDb, uploads_of: Callable[..., Uploads], conflict: Conflict
) -> None:
    source_db.execute(SHARED)
    lists = TableRule("public", "lists", conflict=conflict)
    uploads = uploads_of({"lists": lists, "members": TableRule("public", "members", key=("list_id", "user_id"))})
    ann, ben = uploads.device("ann"), uploads.device("ben")
    ann.applied(put("lists", "L", name="Food"), put("members", "L/ann"), patch("lists", "L", {}, name="Shop"))
    assert ben.parked(put("lists", "L", name="mine now"))["sqlstate"] == "23505"
    if conflict is Conflict.LAST_WRITE_WINS:
        ann.applied(put("lists", "L", name="Home"), put("lists", "L"), put("members", "L/ann"))
    assert source_db.fetch("select * from lists, members") == [
        ("L", "Home" if conflict is Conflict.LAST_WRITE_WINS else "Shop", "L", "ann")
    ]


def test_existing_row_is_updated(uploads: Uploads) -> None:
    uploads.db.execute(
        "create table fired (what text); grant insert on fired to public;"
        "create function fire() returns trigger language plpgsql as"
        " 'begin insert into fired values (tg_op); return new; end';"
        "create trigger t before insert or update on notes for each row execute function fire()"
    )
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="a"), put("notes", "1", owner="ann", title="b"))
    assert uploads.rows("select * from fired") == [("INSERT",), ("UPDATE",)]


def test_concurrent_inserts_of_same_row(uploads: Uploads) -> None:
    device = uploads.device()
    with psycopg.connect(uploads.db.dsn) as other, ThreadPoolExecutor(1) as pool:
        other.execute("insert into notes values ('1', 'ann', 'first', null, 1)")
        sent = pool.submit(device.applied, put("notes", "1", owner="ann", title="second"))
        query = "select from pg_stat_activity where application_name = 'headwater upload' and wait_event_type = 'Lock'"
        wait_until(lambda: uploads.rows(query) != [], "the upload to wait for the other")
        other.commit()
        sent.result()
    assert uploads.rows(ALL) == [("1", "ann", "second", 1)]


def test_claims_come_from_token(uploads: Uploads) -> None:
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


def test_column_list_is_enforced(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
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
        ("drop owned by {role}; drop role {role}", "HW_6121"),
        ("alter table notes owner to {role}", "HW_6122"),
        ("alter table notes drop constraint notes_pkey", "HW_6122"),
        ("revoke usage on schema public from public, {role}", "HW_6122"),
    ],
)
def test_operator_errors_park_nothing(
    uploads: Uploads, upload_role: str, statement: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    device = uploads.device()
    sent = device.transaction(put("notes", "1", owner="ann", title="x"))
    uploads.db.execute(statement.format(role=upload_role))
    response = device.post(sent)
    assert (response.status_code, code in response.json()["error"]["description"]) == (503, True)
    assert code in caplog.text
    assert uploads.rows("select count(*) from headwater_upload.taken") == [(0,)]
    assert uploads.rows("select count(*) from headwater_upload.dead_letters") == [(0,)]
