"""What devices upload is in the source afterwards, once and whole; and what can't be applied waits aside."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater.source.upload import apply
from headwater.source.upload.settings import TableRule
from tests.support.fix_api import Endpoint
from tests.support.fix_logs import line_of
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import ALL, Uploads, delete, patch, put
from tests.support.waiting import wait_until


def test_put_patch_delete(uploads: Uploads) -> None:
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="milk", n=1), put("notes", "2", owner="ann", title="bread"))
    assert uploads.rows(ALL) == [("1", "ann", "milk", 1), ("2", "ann", "bread", None)]
    device.applied(patch("notes", "1", title="tea", n=None), put("notes", "2", owner="ann", title="rolls", n=3))
    assert uploads.rows(ALL) == [("1", "ann", "tea", None), ("2", "ann", "rolls", 3)]
    device.applied(delete("notes", "1"), patch("notes", "2"))
    assert uploads.rows(ALL) == [("2", "ann", "rolls", 3)]


def test_database_timeouts_do_not_end_upload(uploads: Uploads) -> None:
    uploads.db.execute(
        "create function slowly() returns trigger language plpgsql as"
        " 'begin perform pg_sleep(0.6); new.n := pg_backend_pid(); return new; end';"
        "create trigger slowly before insert on notes for each row execute function slowly()"
    )
    for (name,) in uploads.rows(
        "select name from pg_settings where name ~ '^(statement|lock|idle_[is].*|trans.*)_timeout$'"
    ):
        uploads.db.execute(f"alter database {uploads.db.name} set {name} = '300ms'")
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann"))
    uploads.rows("select pg_sleep(0.6)")
    device.applied(put("notes", "2", owner="ann"))
    ((sessions,),) = uploads.rows("select count(distinct n) from notes")
    assert sessions == 1


def test_put_keeps_unnamed_columns(uploads: Uploads) -> None:
    uploads.db.execute("alter table notes alter body set default 'nothing yet'")
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="milk", n=1))
    device.applied(put("notes", "1", owner="ann", title="tea"))
    assert uploads.rows("select title, body, n from notes") == [("tea", "nothing yet", 1)]


def test_transaction_is_applied_or_parked_whole(uploads: Uploads) -> None:
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


def test_repeated_batch_is_applied_once(uploads: Uploads) -> None:
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


def test_grown_transaction_applies_new_entries(uploads: Uploads) -> None:
    device = uploads.device()
    whole = device.transaction(put("notes", "1", owner="ann", title="a", n=1), patch("notes", "1", n=2))
    device.answers({"crud": whole["crud"][:1]})
    uploads.db.execute("update notes set title = 'by somebody else'")
    assert device.answers(whole)[0]["outcome"] == "applied"
    assert uploads.rows("select title, n from notes") == [("by somebody else", 2)]


def test_same_op_ids_of_other_devices(uploads: Uploads) -> None:
    ann, tablet, ben = uploads.device("ann"), uploads.device("ann"), uploads.device("ben")
    tablet.client_id += "-tablet"
    ben.client_id = ann.client_id
    for number, device in enumerate((ann, tablet, ben)):
        device.applied(put("notes", str(number), owner=device.user, title="x"))
    assert len(uploads.rows(ALL)) == 3


def test_reused_op_id_is_parked_once(uploads: Uploads) -> None:
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="a"))
    device.next_op = 1  # its database is a copy from before
    other = device.transaction(put("notes", "2", owner="ann", title="b"))
    answers = [device.answers(other)[0] for _ in range(3)]
    assert [(each["outcome"], each["error"]["code"]) for each in answers] == [("parked", "HW_6115")] * 3
    assert len({each["dead_letter"] for each in answers}) == 1
    assert [row[0] for row in uploads.rows(ALL)] == ["1"]


def test_concurrent_repeats_are_applied_once(uploads: Uploads) -> None:
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


def test_old_ops_are_pruned_and_not_applied_twice(notes_of: Callable[..., Uploads]) -> None:
    uploads = notes_of(window=100)
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


def test_silent_devices_are_forgotten(
    source_db: SourceDb, notes_of: Callable[..., Uploads], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "FORGET_AT_ONCE", 2)
    before = notes_of()
    silent, waiting, here = [before.device() for _ in range(5)], before.device(), before.device()
    sent = [(device, device.transaction(put("notes", "1", owner="ann", title="x"))) for device in (*silent, here)]
    for device, transaction in sent:
        device.answers(transaction)
    waiting.applied(put("notes", "1", owner="ann", title="x"))
    waiting.parked(put("notes", "2", owner="ann", title=""))
    longest_ago = "seen_at = now() - interval '181 days'"
    source_db.execute(f"update headwater_upload.clients set {longest_ago} where client_id <> '{here.client_id}'")
    source_db.execute("delete from notes")
    again = notes_of()
    here.uploads = again
    here.applied(put("notes", "3", owner="ann", title="x"))
    remembered = """
        select c.client_id, count(*) from headwater_upload.taken join headwater_upload.clients c using (client)
        group by 1 order by 2 desc, 1"""
    kept = [(here.client_id, 2), (waiting.client_id, 1)]
    wait_until(lambda: again.rows(remembered) == kept, "all but the letter of devices that are silent to be forgotten")
    for device, transaction in sent[:-1]:
        device.uploads = again
        assert device.answers(transaction)[0]["error"]["code"] == "HW_6116", "it may have been applied"
        device.applied(patch("notes", "3", title="new"))
    assert here.answers(sent[-1][1])[0]["outcome"] == "already_applied"
    assert again.rows(ALL) == [("3", "ann", "new", None)]


def test_other_key_and_composite_key(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
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
    device.applied(put("seats", "3/14", who="ann", hall=3, number=14), patch("seats", "3/14", who="ben", hall="3"))
    assert source_db.fetch("select code::text, name from places") == [(code, "b")]
    assert source_db.fetch("select * from seats") == [(3, 14, "ben")]
    assert device.parked(put("seats", "3", who="x"))["code"] == "HW_6111"
    assert device.parked(patch("seats", "3/14", number="15"))["code"] == "HW_6110"
    assert device.parked(delete("seats", "3/x"))["sqlstate"] == "22P02"
    device.applied(delete("seats", "3/14"), delete("places", code))


def test_composite_key_as_row_id(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    """`row_id()` of a sync config is a JSON array in the order of the table's columns, whatever that of the key is."""
    source_db.execute("create table seats (hall text, number int, who text, primary key (number, hall))")
    device = uploads_of({"seats": TableRule("public", "seats", row_security=False)}).device()
    device.applied(put("seats", '["a/b","14"]', who="x"), put("seats", "15/c", who="y"))
    device.applied(patch("seats", '["c","15"]', who="z"))
    assert source_db.fetch("select * from seats order by number") == [("a/b", 14, "x"), ("c", 15, "z")]
    assert device.parked(put("seats", '["a",14]', who="x"))["code"] == "HW_6111"


def test_deferrable_key_and_child_table(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(
        "create table late (id text primary key deferrable initially deferred, t text);"
        "create table parent (id text primary key, t text); create table child () inherits (parent);"
        "insert into child values ('1', 'a')"
    )
    device = uploads_of({name: TableRule("public", name, row_security=False) for name in ("late", "parent")}).device()
    device.applied(put("late", "1", t="a"), put("late", "1", t="b"), put("parent", "1", t="b"))
    assert source_db.fetch("select * from late") == [("1", "b")]
    assert source_db.fetch("select p.*, tableoid::regclass::text from parent p") == [("1", "b", "child")]


def test_deferred_constraint_and_trigger_error_park(uploads: Uploads) -> None:
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


def test_uploads_use_plain_connections(uploads: Uploads) -> None:
    uploads.device().applied(put("notes", "1", owner="ann", title="x"))
    found = uploads.rows(
        "select distinct backend_type from pg_stat_activity where application_name = 'headwater upload'"
    )
    assert found == [("client backend",)]


def test_parked_log_has_no_values(uploads: Uploads, caplog: pytest.LogCaptureFixture) -> None:
    device = uploads.device()
    device.parked(put("notes", "row-17", owner="ann", title="hush", n="not a number"))
    (line,) = [line_of(record) for record in caplog.records if record.getMessage() == "upload parked"]
    assert all(word in line for word in ("HW_6117", "22P02", "ann", device.client_id))
    assert not any(word in line for word in ("hush", "not a number", "row-17"))


def test_uploads_are_off_by_default(endpoint: Endpoint) -> None:
    assert endpoint.http.post("/upload").status_code == 404
