"""What devices upload is in the source afterwards, once, as far as their users may; and what is not, waits aside."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from headwater.source.upload.settings import Conflict, Operation, TableRule
from tests.support.fix_api import Endpoint
from tests.support.fix_logs import line_of
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import NOTES, Uploads, delete, patch, put
from tests.support.memory_store import MemoryStore

RULE = TableRule("public", "notes")
ALL = "select id, owner, title, n from notes order by id"


def test_rows_are_made_changed_and_removed(uploads: Uploads) -> None:
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="milk", n=1), put("notes", "2", owner="ann", title="bread"))
    assert uploads.rows(ALL) == [("1", "ann", "milk", 1), ("2", "ann", "bread", None)]
    device.applied(patch("notes", "1", title="tea", n=None), put("notes", "2", owner="ann", title="rolls", n=3))
    assert uploads.rows(ALL) == [("1", "ann", "tea", None), ("2", "ann", "rolls", 3)]
    device.applied(delete("notes", "1"), patch("notes", "2"))
    assert uploads.rows(ALL) == [("2", "ann", "rolls", 3)]


def test_what_a_put_does_not_name_keeps_its_value_or_default(uploads: Uploads) -> None:
    uploads.db.execute("alter table notes alter body set default 'nothing yet'")
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="milk", n=1))
    device.applied(put("notes", "1", owner="ann", title="tea"))
    assert uploads.rows("select title, body, n from notes") == [("tea", "nothing yet", 1)]


def test_a_transaction_is_applied_whole_or_waits_whole_and_the_next_one_goes_on(uploads: Uploads) -> None:
    device = uploads.device()
    first = device.transaction(put("notes", "1", owner="ann", title="a"))
    bad = device.transaction(put("notes", "2", owner="ann", title="b"), put("notes", "3", owner="ann", title=""))
    last = device.transaction(put("notes", "4", owner="ann", title="d"))
    answers = device.answers(first, bad, last)
    assert [answer["outcome"] for answer in answers] == ["applied", "parked", "applied"]
    assert [answer["last_op_id"] for answer in answers] == [1, 3, 4]
    assert (answers[1]["error"]["sqlstate"], answers[1]["error"]["op_id"]) == ("23514", 3)
    assert [row[0] for row in uploads.rows(ALL)] == ["1", "4"]
    assert device.answers(bad) == answers[1:2]


def test_the_same_batch_three_times_or_half_of_it_again_is_applied_once(uploads: Uploads) -> None:
    uploads.db.execute("create table log (at timestamptz default clock_timestamp()); grant insert on log to public")
    uploads.db.execute(
        "create function note_it() returns trigger language plpgsql as"
        " 'begin insert into log default values; return new; end';"
        "create trigger t after insert or update on notes for each row execute function note_it()"
    )
    device = uploads.device()
    one = device.transaction(put("notes", "1", owner="ann", title="a", n=1), patch("notes", "1", n=2))
    two = device.transaction(patch("notes", "1", title="b"))
    assert [each["outcome"] for each in device.answers(one, two)] == ["applied", "applied"]
    uploads.db.execute("update notes set title = 'by somebody else'; delete from log")
    for batch in ((one, two), (one, two), (two,), ({"crud": one["crud"][:1]},), ({"crud": one["crud"][1:]}, two)):
        assert {each["outcome"] for each in device.answers(*batch)} == {"already_applied"}
    assert uploads.rows("select title, (select count(*) from log) from notes") == [("by somebody else", 0)]


def test_a_transaction_that_grew_has_only_its_new_entries_applied(uploads: Uploads) -> None:
    device = uploads.device()
    whole = device.transaction(put("notes", "1", owner="ann", title="a", n=1), patch("notes", "1", n=2))
    device.answers({"crud": whole["crud"][:1]})
    uploads.db.execute("update notes set title = 'by somebody else'")
    assert device.answers(whole)[0]["outcome"] == "applied"
    assert uploads.rows("select title, n from notes") == [("by somebody else", 2)]


def test_the_same_op_ids_of_others_are_other_ops(uploads: Uploads) -> None:
    ann, tablet, ben = uploads.device("ann"), uploads.device("ann"), uploads.device("ben")
    tablet.client_id += "-tablet"
    ben.client_id = ann.client_id
    for number, device in enumerate((ann, tablet, ben)):
        device.applied(put("notes", str(number), owner=device.user, title="x"))
    assert len(uploads.rows(ALL)) == 3


def test_an_op_id_used_again_for_something_else_is_put_aside_once(uploads: Uploads) -> None:
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="a"))
    device.next_op = 1  # its database is a copy from before
    other = device.transaction(put("notes", "2", owner="ann", title="b"))
    answers = [device.answers(other)[0] for _ in range(3)]
    assert [(each["outcome"], each["error"]["code"]) for each in answers] == [("parked", "HW_6115")] * 3
    assert len({each["dead_letter"] for each in answers}) == 1
    assert [row[0] for row in uploads.rows(ALL)] == ["1"]


def test_two_that_send_the_same_at_once_apply_it_once(uploads: Uploads) -> None:
    uploads.db.execute("insert into notes values ('1', 'ann', 'counted', null, 0)")
    uploads.db.execute(
        "create function count_up() returns trigger language plpgsql as"
        " 'begin new.n := old.n + 1; return new; end';"
        "create trigger t before update on notes for each row execute function count_up()"
    )
    device = uploads.device()
    sent = [device.transaction(patch("notes", "1", title=f"t{number}")) for number in range(20)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: device.post(*sent), range(3)))
    assert {each["outcome"] for each in device.answers(*sent)} == {"already_applied"}
    assert uploads.rows("select n from notes") == [(20,)]


def test_what_is_remembered_is_pruned_and_nothing_older_is_applied_twice(
    source_db: SourceDb, uploads_of: Callable[..., Uploads]
) -> None:
    source_db.execute(NOTES)
    uploads = uploads_of({"notes": RULE}, window=100)
    device = uploads.device()
    sent = [device.transaction(put("notes", str(n), owner="ann", title="x")) for n in range(1, 256)]
    device.answers(*sent)
    assert uploads.rows("select count(*) from headwater_upload.taken") == [(255,)]
    uploads.db.execute("update headwater_upload.taken set taken_at = now() - interval '8 days'")
    device.applied(put("notes", "256", owner="ann", title="x"))
    assert uploads.rows("select count(*), min(last_op) from headwater_upload.taken") == [(100, 157)]
    uploads.db.execute("delete from notes")
    assert device.answers(sent[0])[0]["error"]["code"] == "HW_6116"
    assert device.answers(sent[200])[0]["outcome"] == "already_applied"
    device.applied(put("notes", "257", owner="ann", title="x"))
    assert [row[0] for row in uploads.rows(ALL)] == ["257"]


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


def test_another_key_and_several_key_columns(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(
        "create table places (internal int generated always as identity primary key, code uuid not null unique,"
        " name text);"
        "create table seats (hall int, number int, who text, primary key (hall, number))"
    )
    places = TableRule("public", "places", key=("code",), row_security=False)
    seats = TableRule("public", "seats", row_security=False)
    device = uploads_of({"places": places, "seats": seats}).device()
    code = "b3e1c3a6-6e2b-4a5e-9f43-0d3a0f1d6b11"
    device.applied(put("places", code.upper(), name="a"), patch("places", code, name="b"))
    device.applied(put("seats", "3/14", who="ann"), patch("seats", "3/14", who="ben", hall="3"))
    assert source_db.fetch("select code::text, name from places") == [(code, "b")]
    assert source_db.fetch("select * from seats") == [(3, 14, "ben")]
    assert device.parked(put("seats", "3", who="x"))["code"] == "HW_6111"
    assert device.parked(patch("seats", "3/14", number="15"))["code"] == "HW_6110"
    assert device.parked(delete("seats", "3/x"))["sqlstate"] == "22P02"
    device.applied(delete("seats", "3/14"), delete("places", code))


def test_the_last_write_wins_by_default(uploads: Uploads) -> None:
    phone, tablet = uploads.device(), uploads.device()
    phone.applied(put("notes", "1", owner="ann", title="a", n=1))
    seen = {"owner": "ann", "title": "a", "n": 1}
    phone.applied(patch("notes", "1", seen, title="phone"))
    tablet.applied(patch("notes", "1", seen, title="tablet"))
    assert uploads.rows(ALL) == [("1", "ann", "tablet", 1)]
    phone.applied(delete("notes", "1"))
    assert tablet.parked(patch("notes", "1", n=5))["code"] == "HW_6113"
    assert uploads.rows(ALL) == []


def test_an_update_of_what_is_gone_may_be_left_out(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(NOTES)
    device = uploads_of({"notes": TableRule("public", "notes", skip_gone=True)}).device()
    device.applied(patch("notes", "1", title="x"), put("notes", "2", owner="ann", title="y"))
    assert [row[0] for row in source_db.fetch(ALL)] == ["2"]


def test_a_changed_row_is_rejected_where_the_policy_says_so(
    source_db: SourceDb, uploads_of: Callable[..., Uploads]
) -> None:
    source_db.execute(NOTES)
    uploads = uploads_of({"notes": TableRule("public", "notes", conflict=Conflict.REJECT_CHANGED)})
    phone, tablet = uploads.device(), uploads.device()
    phone.applied(put("notes", "1", owner="ann", title="a", n=1))
    seen = {"owner": "ann", "title": "a", "body": None, "n": 1}
    phone.applied(patch("notes", "1", seen, title="phone"))
    assert tablet.parked(patch("notes", "1", seen, n=2))["code"] == "HW_6112"
    assert tablet.parked(delete("notes", "1", seen))["code"] == "HW_6112"
    assert tablet.parked(put("notes", "1", owner="ann", title="again"))["code"] == "HW_6112"
    assert tablet.parked(patch("notes", "1", n=2))["code"] == "HW_6111"
    tablet.applied(patch("notes", "1", {"n": 1}, n=2))  # it looks at no more than what the device tracks
    tablet.applied(delete("notes", "1", {**seen, "title": "phone", "n": 2}))
    assert tablet.parked(patch("notes", "1", seen, n=2))["code"] == "HW_6113"
    assert uploads.rows(ALL) == []


def test_a_function_of_ones_own_decides(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(NOTES)
    source_db.execute("create schema app")
    source_db.execute(
        """create function app.merge(tab text, op text, id text, data jsonb, old jsonb) returns jsonb
           language plpgsql as $$
           declare held notes;
           begin
             select * into held from notes where notes.id = merge.id;
             if op = 'DELETE' and held.n > 5 then raise exception 'it is still needed'; end if;
             if op = 'PATCH' and data ? 'n' then  -- counters add up
               return data || jsonb_build_object('n', held.n + (data ->> 'n')::int - (old ->> 'n')::int);
             end if;
             if data ->> 'title' = 'ignore' then return null; end if;
             return data;
           end $$"""
    )
    rule = TableRule("public", "notes", conflict=Conflict.FUNCTION, function=("app", "merge"))
    uploads = uploads_of({"notes": rule})
    phone, tablet = uploads.device(), uploads.device()
    phone.applied(put("notes", "1", owner="ann", title="a", n=1))
    phone.applied(patch("notes", "1", {"n": 1}, n=3))
    tablet.applied(patch("notes", "1", {"n": 1}, n=5), patch("notes", "1", title="ignore"))
    assert uploads.rows(ALL) == [("1", "ann", "a", 7)]
    refused = tablet.parked(delete("notes", "1"))
    assert (refused["sqlstate"], "still needed" in refused["description"]) == ("P0001", True)
    phone.applied(patch("notes", "1", {"n": 7}, n=1), delete("notes", "1"))
    assert uploads.rows(ALL) == []


def test_a_function_that_is_missing_parks_nothing(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(NOTES)
    source_db.execute("create schema app")
    rule = TableRule("public", "notes", conflict=Conflict.FUNCTION, function=("app", "merge"))
    uploads = uploads_of({"notes": rule})
    device = uploads.device()
    sent = device.transaction(put("notes", "1", owner="ann", title="x"))
    response = device.post(sent)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "HW_6122")
    source_db.execute(
        "create function app.merge(text, text, text, jsonb, jsonb) returns jsonb language sql as 'select $4'"
    )
    assert device.answers(sent)[0]["outcome"] == "applied"


def test_a_deferred_constraint_and_an_error_of_a_trigger_put_it_aside(uploads: Uploads) -> None:
    uploads.db.execute(
        "alter table notes add parent text references notes deferrable initially deferred;"
        "create function no() returns trigger language plpgsql as"
        " $$begin raise exception 'no % here', new.title; end$$;"
        "create trigger t before insert on notes for each row when (new.n = 13) execute function no()"
    )
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="a", parent="2"), put("notes", "2", owner="ann", title="b"))
    assert device.parked(put("notes", "3", owner="ann", title="c", parent="4"))["sqlstate"] == "23503"
    assert "no luck here" in device.parked(put("notes", "5", owner="ann", title="luck", n=13))["description"]
    assert [row[0] for row in uploads.rows(ALL)] == ["1", "2"]


def test_a_lock_that_lasts_makes_the_device_come_again(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(NOTES)
    uploads = uploads_of({"notes": RULE}, lock_timeout=1)
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="a"))
    change = device.transaction(patch("notes", "1", title="b"))
    with psycopg.connect(source_db.dsn) as other:
        other.execute("update notes set body = 'held'")
        response = device.post(change)
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert response.json()["error"]["code"] == "HW_6103"
        other.rollback()
    assert source_db.fetch("select count(*) from headwater_upload.dead_letters") == [(0,)]
    assert device.answers(change)[0]["outcome"] == "applied"


def test_a_deadlock_is_tried_again_by_itself(uploads: Uploads) -> None:
    uploads.db.execute("insert into notes values ('1', 'ann', 'a'), ('2', 'ann', 'a')")
    uploads.db.execute(
        f"alter database {uploads.db.name} set deadlock_timeout = '50ms';"
        "create function wait_for_other() returns trigger language plpgsql as $$"
        "begin perform pg_sleep(0.1); return new; end$$;"
        "create trigger t after update on notes for each row execute function wait_for_other()"
    )
    phone, tablet = uploads.device(), uploads.device()
    there = phone.transaction(patch("notes", "1", title="phone"), patch("notes", "2", title="phone"))
    back = tablet.transaction(patch("notes", "2", title="tablet"), patch("notes", "1", title="tablet"))
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda pair: pair[0].answers(pair[1]), ((phone, there), (tablet, back))))
    assert [each[0]["outcome"] for each in answers] == ["applied", "applied"]
    assert len(set(uploads.rows("select title from notes"))) == 1


def test_while_the_source_is_away_the_device_is_told_to_come_again(
    uploads: Uploads,
    start_endpoint: Callable[..., Endpoint],
    memory_store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = replace(uploads.settings, login=replace(uploads.settings.login, port=1))
    device = replace(uploads, endpoint=start_endpoint(memory_store, upload=away)).device()
    response = device.post(device.transaction(put("notes", "1", owner="ann", title="x")))
    assert (response.status_code, "retry-after" in response.headers) == (503, True)
    assert "127.0.0.1" not in response.text
    assert "HW_2001" in caplog.text


def test_a_connection_that_was_ended_meanwhile_is_made_anew(uploads: Uploads) -> None:
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="a"))
    uploads.db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headwater upload'"
    )
    device.applied(patch("notes", "1", title="b"))


def test_all_kept_connections_that_were_ended_are_given_up_at_once(
    source_db: SourceDb, uploads_of: Callable[..., Uploads]
) -> None:
    source_db.execute(NOTES)
    uploads = uploads_of({"notes": RULE}, max_connections=6, max_per_user=6)
    devices = [uploads.device() for _ in range(6)]
    with psycopg.connect(source_db.dsn) as other, ThreadPoolExecutor(6) as pool:
        other.execute("lock table notes")
        sent = [pool.submit(each.applied, put("notes", each.client_id, owner="ann", title="x")) for each in devices]
        waits_for_a_lock(source_db, 6)
        other.rollback()
        for each in sent:
            each.result()
    query = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headwater upload'"
    assert len(source_db.fetch(query)) == 6
    devices[0].applied(put("notes", "again", owner="ann", title="x"))


@pytest.mark.parametrize(
    ("limits", "turned_away"),
    [
        ({"max_per_user": 1, "max_connections": 2, "max_waiting": 0}, "ann"),
        ({"max_per_user": 2, "max_connections": 1, "max_waiting": 0}, "ben"),
    ],
)
def test_more_uploads_at_once_than_are_taken_are_sent_away(
    source_db: SourceDb, uploads_of: Callable[..., Uploads], limits: dict[str, int], turned_away: str
) -> None:
    source_db.execute(NOTES)
    uploads = uploads_of({"notes": RULE}, **limits)
    phone, tablet, ben = uploads.device("ann"), uploads.device("ann"), uploads.device("ben")
    with psycopg.connect(source_db.dsn) as other, ThreadPoolExecutor(1) as pool:
        other.execute("lock table notes")
        held = pool.submit(phone.applied, put("notes", "1", owner="ann", title="x"))
        waits_for_a_lock(source_db)
        refused = tablet.post()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert ben.post().status_code == (429 if turned_away == "ben" else 200)
        other.rollback()
        held.result()
    tablet.applied(put("notes", "2", owner="ann", title="y"))


def waits_for_a_lock(db: SourceDb, uploads: int = 1) -> None:
    query = "select from pg_stat_activity where application_name = 'headwater upload' and wait_event_type = 'Lock'"
    deadline = time.monotonic() + 30
    while len(db.fetch(query)) < uploads:
        assert time.monotonic() < deadline, f"{uploads} uploads wait for a lock"


def test_dead_letters_do_not_pile_up_without_end(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(NOTES)
    uploads = uploads_of({"notes": RULE}, max_parked_per_user=3)
    phone, tablet, ben = uploads.device("ann"), uploads.device("ann"), uploads.device("ben")
    bad = put("notes", "1", owner="ann", title="")
    for device in (phone, tablet, phone):
        device.parked(bad)
    held = tablet.transaction(bad)
    assert tablet.post(held).status_code == 503
    ben.parked(bad)
    uploads.db.execute("update headwater_upload.dead_letters set state = 'discarded' where id = 1")
    assert tablet.answers(held)[0]["outcome"] == "parked"


def test_uploads_never_use_a_connection_that_replicates(uploads: Uploads) -> None:
    uploads.device().applied(put("notes", "1", owner="ann", title="x"))
    found = uploads.rows(
        "select distinct backend_type from pg_stat_activity where application_name = 'headwater upload'"
    )
    assert found == [("client backend",)]


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


def test_the_log_tells_of_what_was_parked_without_its_values(
    uploads: Uploads, caplog: pytest.LogCaptureFixture
) -> None:
    device = uploads.device()
    device.parked(put("notes", "row-17", owner="ann", title="hush", n="not a number"))
    (line,) = [line_of(record) for record in caplog.records if record.getMessage() == "upload parked"]
    assert all(word in line for word in ("HW_6117", "22P02", "ann", device.client_id))
    assert not any(word in line for word in ("hush", "not a number", "row-17"))


def test_uploads_are_off_until_configured(endpoint: Endpoint) -> None:
    assert endpoint.http.post("/upload").status_code == 404
