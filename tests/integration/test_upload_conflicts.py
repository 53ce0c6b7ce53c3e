"""What becomes of a write whose row is not as the device knew it, or is gone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from headwater.source.upload import ledger, policies
from headwater.source.upload.settings import Conflict, TableRule
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import ALL, NOTES, Entry, Uploads, delete, patch, put
from tests.support.waiting import wait_until


def test_last_write_wins(uploads: Uploads) -> None:
    phone, tablet = uploads.device(), uploads.device()
    phone.applied(put("notes", "1", owner="ann", title="a", n=1))
    seen = {"owner": "ann", "title": "a", "n": 1}
    phone.applied(patch("notes", "1", seen, title="phone"))
    tablet.applied(patch("notes", "1", seen, title="tablet"))
    assert uploads.rows(ALL) == [("1", "ann", "tablet", 1)]
    phone.applied(delete("notes", "1"))
    assert tablet.parked(patch("notes", "1", n=5))["code"] == "HW_6113"
    assert uploads.rows(ALL) == []


def test_update_of_deleted_row_is_skipped(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
    device = notes_of(TableRule("public", "notes", skip_gone=True)).device()
    device.applied(patch("notes", "1", title="x"), put("notes", "2", owner="ann", title="y"))
    assert [row[0] for row in source_db.fetch(ALL)] == ["2"]


def test_changed_row_is_rejected(notes_of: Callable[..., Uploads]) -> None:
    uploads = notes_of(TableRule("public", "notes", conflict=Conflict.REJECT_CHANGED))
    phone, tablet = uploads.device(), uploads.device()
    phone.applied(put("notes", "1", owner="ann", title="a", n=1))
    seen = {"owner": "ann", "title": "a", "body": None, "n": 1}
    phone.applied(patch("notes", "1", seen, title="phone"))
    assert tablet.parked(patch("notes", "1", seen, n=2))["code"] == "HW_6112"
    assert tablet.parked(delete("notes", "1", seen))["code"] == "HW_6112"
    assert tablet.parked(put("notes", "1", owner="ann", title="again"))["code"] == "HW_6112"
    tablet.applied(patch("notes", "1", {"n": 1}, n=2))  # it looks at no more than what the device tracks
    tablet.applied(delete("notes", "1", {**seen, "title": "phone", "n": 2}))
    assert tablet.parked(patch("notes", "1", seen, n=2))["code"] == "HW_6113"
    assert uploads.rows(ALL) == []


BLOCKED = "select exists (select from pg_locks where not granted and pg_backend_pid() = any(pg_blocking_pids(pid)))"


def test_row_changed_between_look_and_write(
    source_db: SourceDb, uploads_of: Callable[..., Uploads], monkeypatch: pytest.MonkeyPatch
) -> None:
    source_db.execute(NOTES + "insert into notes values ('1', 'ann', 'a'), ('2', 'ann', 'a')")
    strict = TableRule("public", "notes", conflict=Conflict.REJECT_CHANGED)
    device = uploads_of({"strict": strict, "notes": TableRule("public", "notes")}).device()
    found = policies._permissions

    def refused(entry: Entry, change: str) -> Any:
        with psycopg.connect(source_db.dsn) as other, ThreadPoolExecutor(1) as pool:

            def commit() -> None:
                wait_until(lambda: other.execute(BLOCKED).fetchone() == (True,), "the upload waits for the other")
                other.commit()

            async def change_first(*given: Any) -> Any:
                other.execute(change.encode())
                pool.submit(commit)
                return await found(*given)

            monkeypatch.setattr(policies, "_permissions", change_first)
            return device.parked(delete("notes", "none"), entry)["code"]

    assert (
        refused(patch("strict", "1", {"title": "a"}, n=1), "update notes set title = 'b' where id = '1'") == "HW_6112"
    )
    assert refused(patch("notes", "2", n=1), "delete from notes where id = '2'") == "HW_6113"


def test_hidden_columns_are_not_guessable(
    source_db: SourceDb, uploads_of: Callable[..., Uploads], upload_role: str
) -> None:
    source_db.execute(NOTES)
    listed = TableRule(
        "public", "notes", frozenset({"owner", "title"}), conflict=Conflict.REJECT_CHANGED, compare=frozenset({"body"})
    )
    everything = TableRule("public", "notes", conflict=Conflict.REJECT_CHANGED)
    uploads = uploads_of({"listed": listed, "everything": everything})
    source_db.execute("insert into notes values ('1', 'ann', 'a', 'seen', 7)")
    device = uploads.device()
    device.applied(patch("listed", "1", {"title": "a", "body": "seen"}, title="a"))
    guesses = [device.parked(patch("listed", "1", {"n": n}, title="b")) for n in (7, 8)]
    guesses += [device.parked(delete("listed", "1", {"n": n})) for n in (7, 8)]
    source_db.execute(
        f"revoke select on notes from {upload_role}; grant select (id, owner, title, body) on notes to {upload_role}"
    )
    guesses += [device.parked(patch("everything", "1", {"n": n}, title="b")) for n in (7, 8)]
    device.applied(patch("everything", "1", {"title": "a"}, n=9))
    assert {each["code"] for each in guesses} == {"HW_6110"}
    assert len({each["description"] for each in guesses}) == 1


def test_conflict_function(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
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
    uploads = notes_of(rule)
    phone, tablet = uploads.device(), uploads.device()
    phone.applied(put("notes", "1", owner="ann", title="a", n=1))
    phone.applied(patch("notes", "1", {"n": 1}, n=3))
    tablet.applied(patch("notes", "1", {"n": 1}, n=5), patch("notes", "1", title="ignore"))
    assert uploads.rows(ALL) == [("1", "ann", "a", 7)]
    refused = tablet.parked(delete("notes", "1"))
    assert (refused["sqlstate"], "still needed" in refused["description"]) == ("P0001", True)
    phone.applied(patch("notes", "1", {"n": 7}, n=1), delete("notes", "1"))
    assert uploads.rows(ALL) == []


def test_missing_conflict_function_parks_nothing(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
    source_db.execute("create schema app")
    rule = TableRule("public", "notes", conflict=Conflict.FUNCTION, function=("app", "merge"))
    uploads = notes_of(rule)
    device = uploads.device()
    sent = device.transaction(put("notes", "1", owner="ann", title="x"))
    response = device.post(sent)
    assert (response.status_code, "HW_6122" in response.text) == (503, True)
    source_db.execute(
        "create function app.merge(text, text, text, jsonb, jsonb) returns jsonb language sql as 'select $4'"
    )
    assert device.answers(sent)[0]["outcome"] == "applied"


SOFT = """
alter table notes add gone boolean not null default false;
create function soften() returns trigger language plpgsql as
  $$begin update notes set gone = true where id = old.id; return null; end$$;
create trigger soft before delete on notes for each row execute function soften();
create trigger same before update on notes for each row execute function suppress_redundant_updates_trigger();
create table logged (id text primary key, title text);
create rule keep as on delete to logged do instead update logged set title = 'deleted' where id = old.id;
create rule never as on insert to logged where new.title = 'no' do instead nothing;
insert into logged values ('1', 'a');
insert into notes (id, owner, title) values ('1', 'ann', 'a'), ('2', 'ann', 'b'), ('3', 'ben', 'c');
create policy see on notes for select using (true);
create policy odd on notes as restrictive
  using (exists (select from logged l where l.title not like '%s{}' and notes.id <> l.title));
"""


@pytest.mark.parametrize("conflict", [Conflict.LAST_WRITE_WINS, Conflict.REJECT_CHANGED])
def test_trigger_or_rule_instead(source_db: SourceDb, uploads_of: Callable[..., Uploads], conflict: Conflict) -> None:
    source_db.execute(NOTES + SOFT)
    rule = TableRule("public", "notes", conflict=conflict)
    uploads = uploads_of({"notes": rule, "logged": TableRule("public", "logged", row_security=False)})
    device, old = uploads.device(), {"title": "a", "gone": False}
    device.applied(patch("notes", "1", old, title="a"), delete("notes", "1", old), delete("logged", "1"))
    if conflict is Conflict.LAST_WRITE_WINS:
        device.applied(put("notes", "2", owner="ann", title="b"))
    else:
        assert device.parked(delete("notes", "2", {"title": "older"}))["code"] == "HW_6112"
    device.applied(put("logged", "2", title="no"), put("logged", "3", title="yes"), put("logged", "3", title="again"))
    for refused in (delete("notes", "3", {"title": "c"}), patch("notes", "3", {"title": "c"}, title="d")):
        assert device.parked(put("notes", "9", owner="ann", title="x"), refused)["code"] == "HW_6114"
    assert source_db.fetch("select id, title, gone from notes order by id") == [
        ("1", "a", True), ("2", "b", False), ("3", "c", False),
    ]  # fmt: skip
    assert source_db.fetch("select * from logged order by id") == [("1", "deleted"), ("3", "again")]


def test_accept_zero_rows(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
    source_db.execute("create policy see on notes for select using (true)")
    source_db.execute("insert into notes values ('1', 'ben', 'a')")
    device = notes_of(TableRule("public", "notes", accept_zero_rows=True)).device()
    device.applied(delete("notes", "1"), patch("notes", "1", title="b"), put("notes", "2", owner="ann"))
    assert [row[0] for row in source_db.fetch(ALL)] == ["1", "2"]


def test_values_are_compared_by_column_type(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(
        "create table seats (hall numeric, place uuid, at timestamptz, who text, scores numeric[], span numrange,"
        " primary key (hall, place, at))"
    )
    seats = TableRule("public", "seats", conflict=Conflict.REJECT_CHANGED, row_security=False)
    device = uploads_of({"seats": seats}).device()
    place = "b3e1c3a6-6e2b-4a5e-9f43-0d3a0f1d6b11"
    row_id = f"3/{place}/2025-06-01 10:00:00Z"
    key = {"hall": 3.00, "place": place.upper(), "at": "2025-06-01T12:00:00+02:00"}
    device.applied(put("seats", row_id, **key, who="ann", scores="[1,2.50]", span='{"lower":1,"upper":2}'))
    old = {"hall": "3.0", "scores": "[1.0,2.5]", "span": "[1.0,2.00]", "who": "ann"}
    device.applied(patch("seats", row_id, old, **key, who="ben"))
    for name, value in {"hall": 4, "place": None, "at": "2025-06-01T12:00:00Z"}.items():
        assert device.parked(patch("seats", row_id, {"who": "ben"}, **{name: value}))["code"] == "HW_6110"
    assert source_db.fetch("select who from seats") == [("ben",)]


def test_unknown_columns_dropped_or_renamed(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(NOTES + "alter table notes add total int generated always as (n * 2) stored")
    rules = {
        "dropped": TableRule("public", "notes", drop_unknown=True, conflict=Conflict.REJECT_CHANGED),
        "renamed": TableRule("public", "notes", renamed=(("name", "title"),)),
        "listed": TableRule("public", "notes", columns=frozenset({"owner", "title"})),
    }
    uploads = uploads_of(rules)
    device = uploads.device()
    device.applied(put("dropped", "1", owner="ann", flag=1, total=7), patch("dropped", "1", {"flag": 0}, flag=1, n=2))
    device.applied(put("renamed", "2", owner="ann", name="old"), put("renamed", "3", owner="ann", name="o", title="n"))
    assert source_db.fetch(ALL) == [("1", "ann", None, 2), ("2", "ann", "old", None), ("3", "ann", "n", None)]
    body = {
        "client_id": "old",
        "app_version": "1.2",
        "transactions": [device.transaction(put("renamed", "2", name="old"))],
    }
    assert uploads.post("ann", body).status_code == 200
    counted = uploads.endpoint.server.endpoint.unknown_columns()
    assert counted == {
        ("public.notes", "flag", ""): 2,
        ("public.notes", "total", ""): 1,
        ("public.notes", "name", ""): 2,
        ("public.notes", "name", "1.2"): 1,
    }
    refused = device.post(device.transaction(put("renamed", "4", owner="ann", flag=1)))
    assert (refused.status_code, "HW_6118" in refused.text) == (503, True)
    assert uploads.device().post(device.transaction(put("listed", "4", owner="ann", flag=1))).status_code == 503
    adding = 'run ALTER TABLE "public"."notes" ADD COLUMN "flag"'
    fixes = sorted(each.fix.partition(" …")[0] for each in ledger.waiting(uploads.settings))
    assert fixes == [f"name it in `columns` of upload.tables and restart, then {adding}", adding]


def test_absent_column_becomes_null(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
    source_db.execute("alter table notes alter n set default 5")
    rule = TableRule("public", "notes", null_when_absent=frozenset({"title", "n"}))
    device = notes_of(rule).device()
    device.applied(put("notes", "1", owner="ann", title="a", body="b", n=1), put("notes", "1", owner="ann", title="c"))
    device.applied(patch("notes", "1", body="d"), put("notes", "2", owner="ann"))
    assert source_db.fetch("select title, body, n from notes order by id") == [("c", "d", None), (None, None, None)]
