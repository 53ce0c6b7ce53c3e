"""Dead letters: what an operator sees of them, and what becomes of them; and what prepares a source for uploads."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from headwater.source.upload.errors import NotPrepared
from headwater.source.upload.prepare import missing_for_uploads, prepare_uploads
from headwater.source.upload.settings import TableRule
from tests.support.command import Outcome, headwater_here
from tests.support.fix_api import AUDIENCE, SECRET
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import NOTES, RULE, Uploads, delete, patch, put

Command = Callable[..., Outcome]


@pytest.fixture
def upload(uploads: Uploads, tmp_path: Path) -> Command:
    """See `commands_for`."""
    return commands_for(uploads, tmp_path)


def commands_for(uploads: Uploads, tmp_path: Path) -> Command:
    """`upload("list")` runs `headwater upload list` for the same source."""
    login = uploads.settings.login
    connection = {
        "type": "postgresql", "hostname": login.host, "port": login.port, "database": login.database,
        "username": login.user, "sslmode": "disable",
    }  # fmt: skip
    config = {
        "replication": {"connections": [connection]},
        "storage": {"type": "sqlite", "path": str(tmp_path / "store")},
        "client_auth": {
            "audience": [AUDIENCE],
            "jwks": {"keys": [{"kty": "oct", "alg": "HS256", "k": urlsafe_b64encode(SECRET).decode()}]},
        },
        "upload": {"role": uploads.settings.role, "tables": {"notes": {}}},
        "sync_config": {"content": "streams: {notes: {query: SELECT * FROM notes}}\nconfig: {edition: 3}"},
    }
    path = tmp_path / "headwater.json"
    path.write_text(json.dumps(config))
    return lambda *arguments: headwater_here(*arguments, "--config", path)


def test_letters_are_listed_without_and_shown_with_what_they_say(uploads: Uploads, upload: Command) -> None:
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


def test_letters_are_listed_a_page_at_a_time_and_what_is_kept_of_a_message_is_bounded(
    uploads: Uploads, upload: Command
) -> None:
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


def test_a_letter_is_applied_as_its_user_once_what_kept_it_is_mended(uploads: Uploads, upload: Command) -> None:
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


def test_a_discarded_letter_is_forgotten_and_not_parked_again(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    sent = device.transaction(put("notes", "1", owner="ann", title=""))
    device.answers(sent)
    assert upload("upload", "discard", "1").out == "1: discarded\n"
    assert upload("upload", "discard", "1").code == 1
    assert uploads.rows("select payload, claims from headwater_upload.dead_letters") == [(None, None)]
    assert device.answers(sent)[0]["outcome"] == "already_applied"
    assert "no dead letters wait" in upload("upload", "list").out


def test_a_retry_does_only_what_was_not_applied_with_another_transaction(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    whole = device.transaction(put("notes", "1", owner="ann", title="a"), put("notes", "2", owner="ann", title=""))
    device.answers({"crud": whole["crud"][:1]})
    assert device.answers(whole)[0]["outcome"] == "parked"
    uploads.db.execute("update notes set title = 'by somebody else'")
    uploads.db.execute("alter table notes drop constraint notes_title_check")
    assert upload("upload", "retry", "--all").code == 0
    assert uploads.rows("select id, title from notes order by id") == [("1", "by somebody else"), ("2", "")]


def test_what_a_letter_may_ask_for_is_remembered_until_it_is_retried(
    source_db: SourceDb, uploads_of: Callable[..., Uploads], tmp_path: Path
) -> None:
    source_db.execute(NOTES)
    uploads = uploads_of({"notes": RULE}, window=100)
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


def test_what_a_retry_applied_is_not_applied_with_the_next_letter(uploads: Uploads, upload: Command) -> None:
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


def test_a_letter_of_a_reused_op_id_can_be_applied(uploads: Uploads, upload: Command) -> None:
    device = uploads.device()
    device.applied(put("notes", "1", owner="ann", title="a"))
    device.next_op = 1
    sent = device.transaction(delete("notes", "1"))
    device.answers(sent)
    assert upload("upload", "retry", "--all").code == 0
    assert uploads.rows("select * from notes") == []
    assert device.answers(sent)[0]["outcome"] == "already_applied"


def test_without_uploads_in_the_config_the_commands_say_so(tmp_path: Path) -> None:
    config = tmp_path / "headwater.yaml"
    config.write_text("replication: {connections: [{uri: 'postgresql://u:p@h/d'}]}\nclient_auth: {audience: [a]}")
    done = headwater_here("upload", "list", "--config", config)
    assert done.code == 1
    assert "upload: {role:" in done.err


def test_preparing_twice_does_nothing_more(uploads: Uploads, upload: Command) -> None:
    assert prepare_uploads(uploads.settings).done == ()
    assert missing_for_uploads(uploads.settings) == ()
    done = upload("source", "prepare", "--upload", "--no-triggers", "--print-sql")
    assert (done.code, "headwater_upload" in done.out) == (0, False)
    uploads.db.execute("drop schema headwater_upload cascade")
    done = upload("source", "prepare", "--upload", "--no-triggers")
    assert "ran: CREATE SCHEMA headwater_upload" in done.out
    uploads.device().applied(put("notes", "1", owner="ann", title="x"))


def test_a_table_without_policies_is_told_of(uploads: Uploads, upload: Command) -> None:
    uploads.db.execute("alter table notes disable row level security")
    done = upload("source", "prepare", "--upload", "--no-triggers")
    assert 'ALTER TABLE "public"."notes" ENABLE ROW LEVEL SECURITY' in done.err


def test_a_login_of_its_own_gets_just_the_rights_that_it_needs(
    source_db: SourceDb, uploads_of: Callable[..., Uploads], upload_role: str
) -> None:
    source_db.execute(NOTES)
    login = f"{source_db.name}_login"
    source_db.execute(f"create role {login} login noinherit")
    try:
        admin = uploads_of({"notes": TableRule("public", "notes")})
        settings = replace(admin.settings, login=replace(admin.settings.login, user=login))
        with pytest.raises(NotPrepared) as refused:
            prepare_uploads(settings)
        assert f'GRANT "{upload_role}" TO "{login}"' in str(refused.value)
        prepare_uploads(settings, admin.settings.login)
        weak = uploads_of({"notes": TableRule("public", "notes")}, login=settings.login)
        weak.device().applied(put("notes", "1", owner="ann", title="x"))
        weak.device().parked(put("notes", "2", owner="ben", title="x"))
        with (
            psycopg.connect(source_db.server.dsn(source_db.name), user=login) as conn,
            pytest.raises(psycopg.errors.InsufficientPrivilege),
        ):
            conn.execute("select * from notes")
    finally:
        source_db.execute(f"drop owned by {login}; drop role {login}")
