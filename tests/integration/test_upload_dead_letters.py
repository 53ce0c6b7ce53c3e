"""Dead letters: what an operator sees of them, and what becomes of them; and what prepares a source for uploads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.cli.doctor import Level, check_upload
from headwater.errors import HeadwaterError
from headwater.source.readiness.finding import Finding
from headwater.source.upload.prepare import check_uploads, missing_for_uploads, prepare_uploads
from headwater.source.upload.settings import Conflict, Operation, TableRule
from tests.support.command import Outcome, headwater_here
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import NOTES, RULE, Uploads, delete, patch, put

Command = Callable[..., Outcome]


@pytest.fixture
def upload(uploads: Uploads, tmp_path: Path) -> Command:
    """See `commands_for`."""
    return commands_for(uploads, tmp_path)


def commands_for(uploads: Uploads, tmp_path: Path) -> Command:
    """`upload("list")` runs `headwater upload list` for the same source."""
    sync = {"content": "streams: {notes: {query: SELECT * FROM notes}}\nconfig: {edition: 3}"}
    config = {**uploads.config(tmp_path), "sync_config": sync}
    path = tmp_path / "headwater.json"
    path.write_text(json.dumps(config))
    return lambda *arguments: headwater_here(*arguments, "--config", path)


def test_letters_listed_and_shown(uploads: Uploads, upload: Command) -> None:
    assert "no dead letters wait" in upload("upload", "list").out
    device = uploads.device()
    device.parked(put("notes", "1", owner="ann", title="fine", body="hush"), put("notes", "2", owner="ann", title=""))
    listed = upload("upload", "list").out
    assert all(word in listed for word in ("user ann", "ops 1 to 2", "HW_6117", "notes_title_check", "(op 2)"))
    assert "hush" not in listed
    (facts,) = json.loads(upload("upload", "list", "--json").out)
    assert (facts["sqlstate"], facts["client_id"]) == ("23514", device.client_id)
    shown = json.loads(upload("upload", "show", str(facts["id"])).out)
    assert shown["crud"][0]["data"] == {"owner": "ann", "title": "fine", "body": "hush"}
    assert upload("upload", "show", "999").code == 1


def test_letters_are_paged_and_bounded(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    for number in range(5):
        refused = device.parked(put("notes", str(number), owner="ann", title="x", n="y" * 5000))
        assert len(refused["description"]) < 1200
    first = upload("upload", "list", "--json", "--limit", "2")
    assert ([each["id"] for each in json.loads(first.out)], "--after 2" in first.err) == ([1, 2], True)
    last = upload("upload", "list", "--json", "--after", "2")
    assert ([each["id"] for each in json.loads(last.out)], last.err) == ([3, 4, 5], "")
    uploads.db.execute("alter table notes alter n type text")
    assert upload("upload", "retry", "--all").out == "".join(f"{number}: applied\n" for number in range(1, 6))


def test_retried_letter_is_applied_as_user(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    sent = device.transaction(put("notes", "1", owner="ann", title=""), patch("notes", "1", n=1))
    device.answers(sent)
    device.parked(put("notes", "2", owner="ben", title="in his name"))
    again = upload("upload", "retry", "1")
    assert (again.code, "HW_6117" in again.err) == (1, True)
    assert "tried 2 times" in upload("upload", "list").out
    uploads.db.execute("alter table notes drop constraint notes_title_check")
    both = upload("upload", "retry", "--all")
    assert (both.code, both.out) == (1, "1: applied\n")
    assert uploads.rows("select id, title, n from notes") == [("1", "", 1)]
    assert upload("upload", "retry", "1").code == 1
    # the device may still not know of it
    assert device.answers(sent)[0]["outcome"] == "already_applied"
    assert uploads.rows("select count(*) from notes") == [(1,)]


def test_discarded_letter_is_forgotten(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    sent = device.transaction(put("notes", "1", owner="ann", title=""))
    device.answers(sent)
    assert upload("upload", "discard", "1").out == "1: discarded\n"
    assert upload("upload", "discard", "1").code == 1
    assert uploads.rows("select payload, claims from headwater_upload.dead_letters") == [(None, None)]
    assert device.answers(sent)[0]["outcome"] == "already_applied"
    assert "no dead letters wait" in upload("upload", "list").out


def test_retry_applies_only_the_rest(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    whole = device.transaction(put("notes", "1", owner="ann", title="a"), put("notes", "2", owner="ann", title=""))
    device.answers({"crud": whole["crud"][:1]})
    assert device.answers(whole)[0]["outcome"] == "parked"
    uploads.db.execute("update notes set title = 'by somebody else'")
    uploads.db.execute("alter table notes drop constraint notes_title_check")
    assert upload("upload", "retry", "--all").code == 0
    assert uploads.rows("select id, title from notes order by id") == [("1", "by somebody else"), ("2", "")]


def test_letter_claims_are_kept_for_retry(
    source_db: SourceDb, notes_of: Callable[..., Uploads], tmp_path: Path
) -> None:
    uploads = notes_of(window=100)
    device = uploads.device()
    whole = device.transaction(put("notes", "1", owner="ann", title="a"), put("notes", "2", owner="ann", title=""))
    device.answers({"crud": whole["crud"][:1]})
    assert device.answers(whole)[0]["outcome"] == "parked"
    device.applied(*(patch("notes", "1", title=f"t{n}") for n in range(250)))
    source_db.execute("update headwater_upload.taken set taken_at = now() - interval '8 days'")
    for number in range(5):
        device.applied(patch("notes", "1", title=f"by somebody {number}"))
    source_db.execute("alter table notes drop constraint notes_title_check")
    assert commands_for(uploads, tmp_path)("upload", "retry", "--all").code == 0
    assert uploads.rows("select id, title from notes order by id") == [("1", "by somebody 4"), ("2", "")]


def test_retry_is_not_applied_with_next_letter(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    whole = device.transaction(put("notes", "1", owner="ann", title=""), put("notes", "2", owner="ann", title=""))
    device.answers({"crud": whole["crud"][:1]})
    uploads.db.execute("alter table notes drop constraint notes_title_check")
    assert upload("upload", "retry", "--all").code == 0
    uploads.db.execute("update notes set title = 'by somebody else'")
    uploads.db.execute("alter table notes add constraint t check (title <> '')")
    assert device.answers(whole)[0]["outcome"] == "parked"
    uploads.db.execute("alter table notes drop constraint t")
    assert upload("upload", "retry", "--all").code == 0
    assert uploads.rows("select id, title from notes order by id") == [("1", "by somebody else"), ("2", "")]


def test_letter_of_reused_op_id_is_applied(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="a"))
    device.next_op = 1
    sent = device.transaction(delete("notes", "1"))
    device.answers(sent)
    assert upload("upload", "retry", "--all").code == 0
    assert uploads.rows("select * from notes") == []
    assert device.answers(sent)[0]["outcome"] == "already_applied"


def test_commands_without_uploads(tmp_path: Path) -> None:
    config = tmp_path / "headwater.yaml"
    config.write_text("replication: {connections: [{uri: 'postgresql://u:p@h/d'}]}\nclient_auth: {audience: [a]}")
    done = headwater_here("upload", "list", "--config", config)
    assert done.code == 1
    assert "upload: {role:" in done.err


def test_prepare_uploads_is_idempotent(uploads: Uploads, upload: Command) -> None:
    assert prepare_uploads(uploads.settings).done == ()
    assert missing_for_uploads(uploads.settings) == ()
    done = upload("source", "prepare", "--upload", "--no-triggers", "--print-sql")
    assert (done.code, "headwater_upload" in done.out) == (0, False)
    uploads.db.execute("drop schema headwater_upload cascade")
    done = upload("source", "prepare", "--upload", "--no-triggers")
    assert "ran: CREATE SCHEMA headwater_upload" in done.out
    uploads.device().applied(put("notes", "1", owner="ann", title="x"))


@dataclass(frozen=True)
class Case:
    """A table, a write of a device to it, and what is told of the table beforehand."""

    ddl: str
    told: str = ""
    rule: Mapping[str, Any] = field(default_factory=dict)
    row_id: str = "1"
    data: Mapping[str, Any] = field(default_factory=lambda: {"t": "x"})
    fails: bool = True


NOT_YET = frozenset({Operation.UPDATE, Operation.DELETE})
UNSURE = frozenset({"foreign_type", "ruled"})
"""What comes of these depends on the write."""
OPEN: Mapping[str, Any] = {"row_security": False}
CASES = {
    "always": Case("(id int generated always as identity primary key, t text)", "a key that Postgres makes itself, id"),
    "stored": Case("(a text, id text generated always as (upper(a)) stored primary key, t text)", "makes itself, id"),
    "updated": Case("(id int generated always as identity primary key, t text)", rule={"operations": NOT_YET},
                    fails=False),
    "counted": Case("(id serial primary key, t text)", "a key that Postgres counts, id", fails=False),
    "partly": Case("(a text, b text default 'x', t text, primary key (a, b))", "a default for b, a part of its key",
                   row_id="1/2", fails=False),
    "whole": Case("(a text, b text, t text, primary key (a, b)); alter table whole replica identity full",
                 "a replica identity that is not its primary key", row_id="1/2", fails=False),
    "deferred": Case("(id text primary key deferrable initially deferred, t text)", fails=False),
    "keyless": Case("(id text, t text)", "no primary key"),
    "divided": Case("(id text, t text, primary key (id)) partition by list (id);"
                    "create table divided_1 partition of divided for values in ('1')", fails=False),
    "parent": Case("(id text primary key, t text); create table child () inherits (parent)", fails=False),
    "ruled": Case("(id text primary key, t text); create rule r as on update to ruled do also notify x",
                  "has a rule, r", fails=False, data={}),
    "bytes": Case("(id bytea primary key, t text)", row_id="\\x61", fails=False),
    "misspelt": Case("(id text primary key, t text)", "has no column title", {"columns": frozenset({"title"})},
                     data={"title": "x"}),
    "needy": Case("(id text primary key, t text, must text not null)", "needs a value for column must",
                  {"columns": frozenset({"t"})}),
    "unset": Case("(id text primary key, t text)", "can't set column id to null",
                  {"null_when_absent": frozenset({"id"})}),
    "barred": Case("(id text primary key, t text, n int)", "does not let devices write column n",
                   {"columns": frozenset({"t"}), "null_when_absent": frozenset({"n"})}),
    "numbered": Case("(id text primary key, t text, n serial)", fails=False),
    "foreign_type": Case("(id text primary key, t text, e hidden.mood)", "permission denied for schema hidden",
                         {"conflict": Conflict.REJECT_CHANGED}, data={}),
    "comparing": Case("(id text primary key, t text)", "compares previous values of any column",
                      {"conflict": Conflict.REJECT_CHANGED}, fails=False),
    "unsecured": Case("(id text primary key, t text)", "uploads need row-level security", {"row_security": True}),
    "unruled": Case("(id text primary key, t text); alter table unruled enable row level security",
                    "has no policy by which", {"row_security": True}),
    "circular": Case("(id text primary key, t text); alter table circular enable row level security;"
                     "create policy p on circular using (id in (select id from circular))", "infinite recursion",
                     {"row_security": True}),
}  # fmt: skip


def test_check_names_what_cannot_work(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute("create schema hidden; create type hidden.mood as enum ('good')")
    source_db.execute("create table base (id text primary key, t text); create view shown as select * from base")
    for name, case in CASES.items():
        source_db.execute(f"create table {name} {case.ddl}")
    rules = {name: TableRule("public", name, **{**OPEN, **case.rule}) for name, case in CASES.items()}
    rules |= {name: TableRule("public", name, **OPEN) for name in ("shown", "nowhere")}
    uploads = uploads_of(rules)
    findings = check_uploads(uploads.settings)

    def of(name: str) -> list[Finding]:
        return [each for each in findings if f"public.{name} " in each.what.replace(":", " ")]

    assert "is a view" in of("shown")[0].what
    assert "not in the source" in of("nowhere")[0].what
    device = uploads.device()
    for name, case in CASES.items():
        told = of(name)
        assert any(case.told in each.what for each in told) if case.told else not told, (name, told)
        operation = patch if name == "updated" else put
        if name == "updated":
            source_db.execute("insert into updated values (default, 'x')")
        response = device.post(device.transaction(operation(name, case.row_id, **case.data)))
        applied = response.status_code == 200 and response.json()["transactions"][0]["outcome"] == "applied"
        assert applied is not case.fails or name in UNSURE, (name, response.text)
        assert any(each.fatal for each in told) is case.fails, (name, told)


def test_table_without_policies_is_named(uploads: Uploads, upload: Command) -> None:
    uploads.db.execute("alter table notes disable row level security")
    done = upload("source", "prepare", "--upload", "--no-triggers")
    assert 'ALTER TABLE "public"."notes" ENABLE ROW LEVEL SECURITY' in done.err


def test_login_gets_only_needed_rights(source_db: SourceDb, notes_of: Callable[..., Uploads], upload_role: str) -> None:
    login = f"{source_db.name}_login"
    source_db.execute(f"create role {login} login noinherit")
    try:
        admin = notes_of()
        settings = replace(admin.settings, login=replace(admin.settings.login, user=login))
        with pytest.raises(HeadwaterError, match="HW_6120") as refused:
            prepare_uploads(settings)
        assert f'GRANT "{upload_role}" TO "{login}"' in str(refused.value)
        prepare_uploads(settings, admin.settings.login)
        weak = notes_of(login=settings.login)
        weak.device().applied(put("notes", "1", owner="ann", title="x"))
        weak.device().parked(put("notes", "2", owner="ben", title="x"))
        with (
            psycopg.connect(source_db.server.dsn(source_db.name), user=login) as conn,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            conn.execute("select * from notes")
    finally:
        source_db.execute(f"drop owned by {login}; drop role {login}")


def test_prepare_with_admin(
    source_db: SourceDb, uploads_of: Callable[..., Uploads], upload_role: str, tmp_path: Path
) -> None:
    source_db.execute(NOTES.replace("n integer", "n serial"))
    login, port = f"{source_db.name}_login", source_db.server.port
    admin_uri = f"postgresql://{source_db.connection.info.user}@127.0.0.1:{port}/{source_db.name}?sslmode=disable"
    source_db.execute(f"create role {login} login; create role {login}_admin login createrole")
    source_db.execute(f"grant create on database {source_db.name} to {login}_admin")
    try:
        uploads = uploads_of({"notes": RULE})
        settings = replace(uploads.settings, login=replace(uploads.settings.login, user=login))
        source_db.execute(f"drop schema headwater_upload cascade; drop owned by {upload_role}; drop role {upload_role}")
        with pytest.raises(
            HeadwaterError, match=r"(?s)HW_6120.*permission denied for table notes; so nothing was changed"
        ):
            prepare_uploads(settings, replace(settings.login, user=f"{login}_admin"))
        # with a right of its own to the table, Postgres only warns that it grants nothing
        source_db.execute(
            f"grant select on notes to {login}_admin; grant usage on sequence notes_n_seq to {login}_admin"
        )
        with pytest.raises(
            HeadwaterError, match=r"(?s)HW_6120.*could not grant that .* on public\.notes, .*; so nothing was changed"
        ):
            prepare_uploads(settings, replace(settings.login, user=f"{login}_admin"))
        assert source_db.fetch("select from pg_namespace where nspname = 'headwater_upload'") == []
        assert source_db.fetch("select from pg_roles where rolname = %s", upload_role) == []

        command = commands_for(replace(uploads, settings=settings), tmp_path)
        prepare = ("source", "prepare", "--upload", "--no-triggers")
        alone = command(*prepare)
        assert (alone.code, "BYPASSRLS" in alone.err, "CREATE SCHEMA headwater_upload" in alone.err) == (1, True, True)
        done = command(*prepare, "--admin-uri", admin_uri)
        assert done.code == 0, done.err
        for part in (
            "REPLICATION",
            "BYPASSRLS",
            "CREATE PUBLICATION",
            "GRANT USAGE ON SEQUENCE",
            "ready: uploads to 1",
        ):
            assert part in done.out
        again = command(*prepare)
        assert (again.code, "ran:" in again.out, f"there: role {upload_role}" in again.out) == (0, False, True)
        assert f"there: {upload_role} may SELECT, INSERT, UPDATE, DELETE on public.notes" in again.out
        assert [each.level for each in check_upload(settings)] == [Level.OK]

        uploads.db.execute(f"revoke insert on notes from {upload_role}")
        (told,) = (each for each in check_upload(settings) if each.level is Level.FAIL)
        assert told.sql == (f'GRANT INSERT ON "public"."notes" TO "{upload_role}"',)
        status = command("source", "status")
        assert (status.code, told.sql[0] in status.out) == (1, True)
        uploads.db.execute(f"grant insert on notes to {upload_role}; alter role {upload_role} bypassrls")
        assert ["HW_6121" in each.what for each in check_upload(settings)] == [True]
        uploads.db.execute("alter table headwater_upload.taken drop column digests")
        assert ["HW_6120" in each.what for each in check_upload(settings)] == [True]
        assert "[HW_2001]" in next(check_upload(replace(settings, login=replace(settings.login, port=1)))).what
    finally:
        source_db.execute(f"drop owned by {login}, {login}_admin; drop role {login}, {login}_admin")


def test_waiting_letters_are_checked(uploads: Uploads) -> None:
    uploads.device().parked(put("notes", "1", owner="ann", title=""))
    before = uploads.rows("select client_id from headwater_upload.clients")
    (told,) = check_uploads(uploads.settings)
    assert (told.code, "1, the oldest since" in told.what, told.fatal) == ("HW_6127", True, False)
    assert uploads.rows("select client_id from headwater_upload.clients") == before


def test_passing_causes_are_checked(uploads: Uploads) -> None:
    uploads.db.execute(f"alter database {uploads.db.name} set default_transaction_read_only = on")
    (told,) = check_uploads(uploads.settings)
    assert ("could not be tried" in told.what, "25006" in told.what, told.fix) == (True, True, "try it again")


def test_status_names_waiting_uploads(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    sent = device.transaction(put("notes", "1", owner="ann", **{"lost; --": 1}))
    assert device.post(sent).status_code == 503
    ((since,),) = uploads.rows(
        "select to_char(since at time zone 'UTC', 'YYYY-MM-DD HH24:MI') from headwater_upload.waiting"
    )
    for command in (("source", "status"), ("doctor",)):
        told = upload(*command).out
        assert (
            f'[HW_6118] the table has no column "lost; --" (public.notes): uploads of 1 device wait since {since} UTC'
            in told
        )
        assert 'ALTER TABLE "public"."notes" ADD COLUMN "lost; --"' in told
    uploads.db.execute('alter table notes add "lost; --" int')
    assert device.answers(sent)[0]["outcome"] == "applied"
    assert "HW_6118" not in upload("source", "status").out


def test_device_is_told_what_was_refused(uploads: Uploads, upload: Command) -> None:
    """What the user reads names no table and no value, unless the app's own function wrote it."""
    uploads.db.execute(
        "alter table notes add unique (n);"
        "create function full_list() returns trigger language plpgsql as $$begin"
        " raise check_violation using message = 'The list is full, ' || new.owner || '.'; end$$;"
        "create trigger t before insert on notes for each row when (new.n = 100) execute function full_list()"
    )
    uploads.device("ben").applied(put("notes", "9", owner="ben", title="hush", n=9))
    device = uploads.device()
    ok = put("notes", "1", owner="ann", title="a", n=1)
    told = {
        "22P02": (put("notes", "2", owner="ann", n="nine"), "A value is not of the kind that belongs here."),
        "owner": (put("notes", "2", title="x"), "You may not change this."),
        "23505": (put("notes", "2", owner="ann", n=9), "There is one like this already."),
        "23514": (put("notes", "2", owner="ann", title=""), "A value is not allowed here."),
        "full": (put("notes", "2", owner="ann", n=100), "The list is full, ann."),
        "42501": (put("notes", "2", owner="ben", title="x"), "You may not change this."),
        "gone": (patch("notes", "9", title="mine"), "This was deleted, or is not shared with you any more."),
        "table": (put("secrets", "2", owner="ann"), "This can't be changed from a device."),
        "form": (put("notes", "2\0", owner="ann"), "A value is not of the kind that belongs here."),
    }
    for entry, message in told.values():
        error = device.parked(ok, entry)
        assert error["message"] == message, error
        named = {name: error.get(name) for name in ("op", "type", "id")}
        expected = {"op": entry["op"], "type": entry["type"], "id": entry["id"] if "\0" not in entry["id"] else None}
        assert (named, error["op_id"]) == (expected, device.next_op - 1)
        assert "hush" not in json.dumps(error)

    def waiting(user: str, **parameters: str) -> list[dict[str, object]]:
        headers = {"authorization": f"Token {uploads.token(user)}"}
        response = uploads.endpoint.http.get("/upload/refused", params=parameters, headers=headers)
        assert response.status_code == (200 if parameters else 400), response.text
        found: list[dict[str, object]] = response.json().get("refused", [])
        return found

    first = waiting("ann", client_id=device.client_id)
    assert [each["dead_letter"] for each in first] == list(range(len(told), 0, -1))
    assert first[-1]["error"]["message"] == told["22P02"][1]  # type: ignore[index]
    assert waiting("ben", client_id=device.client_id) == waiting("ann") == []
    uploads.db.execute("alter table notes drop constraint notes_title_check")
    assert upload("upload", "retry", "4").code == 0
    assert upload("upload", "discard", "1").code == 0
    assert [each["dead_letter"] for each in waiting("ann", client_id=device.client_id)] == [9, 8, 7, 6, 5, 3, 2]
    assert uploads.endpoint.http.get("/upload/refused").status_code == 401
