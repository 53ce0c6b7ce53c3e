"""What becomes of a write whose row is not as the device knew it, or is gone."""

from __future__ import annotations

from collections.abc import Callable

from headwater.source.upload.settings import Conflict, TableRule
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import ALL, NOTES, Uploads, delete, patch, put


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


def test_old_values_tell_nothing_of_columns_that_the_device_may_not_know(
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
