"""Who may write what of the demo, and what of it is in the database afterwards."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headwater.api.upload.settings import read_upload
from headwater.config.document import parse_json
from headwater.config.reader import ConfigFindings, Section
from headwater.dev.sample import ROLE, UPLOAD
from headwater.source.connect import SourceSettings
from headwater.source.upload.prepare import check_uploads
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import Entry, Uploads, delete, patch
from tests.support.fix_upload import put as put_row


@dataclass
class SharedLists:
    """The two people, the list they share, and a list and a to-do of each that the other can't see."""

    uploads: Uploads
    ada: str
    ben: str
    common: str
    adas: str
    bens: str

    @property
    def db(self) -> SourceDb:
        return self.uploads.db

    def send(self, user: str, *writes: Entry) -> None:
        self.uploads.device(user).applied(*writes)

    def refused(self, user: str, *writes: Entry) -> dict[str, Any]:
        return self.uploads.device(user).parked(*writes)

    def todo_of(self, list_id: str) -> str:
        return str(self.db.fetch("select id from todos where list_id = %s order by id limit 1", list_id)[0][0])

    def count(self, table: str, row_id: str) -> int:
        return int(self.db.fetch(f"select count(*) from {table} where id = %s", row_id)[0][0])


@pytest.fixture
def lists(demo_db: SourceDb, uploads_of: Callable[..., Uploads]) -> SharedLists:
    (ada,), (ben,) = demo_db.fetch("select id from users order by created_at, id limit 2")

    def list_of(owner: uuid.UUID, name: str) -> str:
        return str(demo_db.fetch("select id from lists where owner_id = %s and name = %s", owner, name)[0][0])

    root = Section({"upload": parse_json(json.dumps(UPLOAD), "the demo")}, "", None, ConfigFindings())
    settings = read_upload(root, [SourceSettings("", "", "")])
    assert settings is not None
    return SharedLists(
        uploads_of(settings.tables, role=ROLE), str(ada), str(ben),
        list_of(ada, "Weekend together"), list_of(ada, "Reading"), list_of(ben, "Holiday"),
    )  # fmt: skip


def put(table: str, row_id: str | None = None, **values: object) -> Entry:
    return put_row(table, row_id or str(uuid.uuid4()), **values)


def new_list(owner: str) -> tuple[Entry, Entry]:
    """A list as the demo app sends it: together with the row that makes its owner a member."""
    made = put("lists", owner_id=owner, name="Picnic", created_at="2025-06-01T10:00:00.000Z")
    return made, put("list_members", list_id=made["id"], user_id=owner, role="owner")


def test_check_finds_nothing(lists: SharedLists) -> None:
    assert check_uploads(lists.uploads.settings) == ()


def test_list_is_shared_and_unshared(lists: SharedLists) -> None:
    made, seat = new_list(lists.ada)
    lists.send(lists.ada, made, seat)
    guest = put("list_members", list_id=made["id"], user_id=lists.ben, role="member")
    lists.send(lists.ada, guest)
    lists.send(lists.ben, put("todos", list_id=made["id"], title="Bring plates", done=False))
    lists.send(lists.ada, delete("list_members", guest["id"]))
    lists.refused(lists.ben, put("todos", list_id=made["id"], title="Bring forks", done=False))
    assert lists.db.fetch("select title from todos where list_id = %s", made["id"]) == [("Bring plates",)]


@pytest.mark.parametrize("person", ["ada", "ben"])
def test_shared_todos_are_writable_by_both(lists: SharedLists, person: str) -> None:
    user = lists.ada if person == "ada" else lists.ben
    todo = lists.todo_of(lists.common)
    lists.send(user, patch("todos", todo, done=True, completed_at="2025-06-01T10:00:00.000Z"))
    assert lists.db.fetch("select done, completed_at is not null from todos where id = %s", todo) == [(True, True)]
    lists.send(user, patch("todos", todo, done=False, completed_at=None))
    assert lists.db.fetch("select done, completed_at from todos where id = %s", todo) == [(False, None)]
    lists.send(user, delete("todos", todo))
    assert lists.count("todos", todo) == 0


def test_repeated_batch_changes_nothing(lists: SharedLists) -> None:
    made, seat = new_list(lists.ada)
    todo = put("todos", list_id=made["id"], title="Blanket", done=False)
    writes = (made, seat, todo, patch("todos", todo["id"], done=True))
    device = lists.uploads.device(lists.ada)
    sent = device.transaction(*writes)
    assert [device.answers(sent)[0]["outcome"] for _ in range(2)] == ["applied", "already_applied"]
    lists.send(lists.ada, delete("todos", todo["id"]))
    lists.send(lists.ada, delete("todos", todo["id"]))
    assert (lists.count("lists", made["id"]), lists.count("todos", todo["id"])) == (1, 0)


def test_refused_write_undoes_its_batch(lists: SharedLists) -> None:
    todo = put("todos", list_id=lists.bens, title="Mine", done=False)
    lists.refused(lists.ben, todo, patch("todos", lists.todo_of(lists.adas), title="Yours"))
    assert lists.count("todos", todo["id"]) == 0


def test_rows_of_others_are_not_writable(lists: SharedLists) -> None:
    secret = lists.todo_of(lists.adas)
    own = lists.todo_of(lists.bens)
    seat = lists.db.fetch("select id from list_members where list_id = %s and user_id = %s", lists.adas, lists.ada)
    before = everything(lists)
    for write in (
        put("todos", list_id=lists.adas, title="x", done=False),
        put("todos", secret, list_id=lists.bens, title="taken over", done=False),
        patch("todos", secret, title="x"),
        patch("todos", secret, list_id=lists.bens),
        patch("todos", own, list_id=lists.adas),
        patch("lists", lists.adas, name="x"),
        put("lists", lists.adas, owner_id=lists.ben, name="x"),
        put("lists", lists.adas, name="x"),
        put("lists", owner_id=lists.ada, name="in her name"),
        put("list_members", list_id=lists.adas, user_id=lists.ben, role="member"),
        put("list_members", list_id=lists.adas, user_id=lists.ben, role="owner"),
        # the common list is hers: he may work on its to-dos, and no more
        delete("lists", lists.common),
        patch("lists", lists.common, owner_id=lists.ben),
        put("list_members", list_id=lists.common, user_id=str(uuid.uuid4()), role="member"),
    ):
        lists.refused(lists.ben, write)
    # what he does not see is not there for him
    lists.send(lists.ben, delete("todos", secret), delete("lists", lists.adas), delete("list_members", str(seat[0][0])))
    assert everything(lists) == before


def everything(lists: SharedLists) -> list[tuple[str]]:
    tables = ("lists", "list_members", "todos")
    return [lists.db.fetch(f"select md5(string_agg(t::text, '' order by id)) from {table} t")[0] for table in tables]


def test_list_has_one_owner(lists: SharedLists) -> None:
    seats = dict(lists.db.fetch("select user_id::text, id::text from list_members where list_id = %s", lists.common))
    for write in (
        put("list_members", list_id=lists.common, user_id=lists.ben, role="owner"),
        delete("list_members", seats[lists.ada]),
    ):
        lists.refused(lists.ada, write)
    lists.send(lists.ben, delete("list_members", seats[lists.ben]))
    assert lists.count("list_members", seats[lists.ben]) == 0


def test_write_to_deleted_row_is_given_up(lists: SharedLists) -> None:
    todo = lists.todo_of(lists.common)
    lists.db.execute("delete from lists where id = %s", lists.common)
    stranger = put("list_members", list_id=lists.bens, user_id=str(uuid.uuid4()), role="member")
    for write in (
        patch("todos", todo, done=True),
        put("todos", list_id=lists.common, title="x", done=False),
        patch("lists", lists.common, name="x"),
        put("list_members", list_id=lists.common, user_id=lists.ada, role="owner"),
        stranger,
    ):
        lists.refused(lists.ben, write)
    lists.send(lists.ben, delete("todos", todo), delete("lists", lists.common))


def test_sharing_twice_is_refused(lists: SharedLists) -> None:
    again = lists.refused(lists.ada, put("list_members", list_id=lists.common, user_id=lists.ben, role="member"))
    assert again["sqlstate"] == "23505"


@pytest.mark.parametrize(
    "values",
    [{"title": ""}, {"title": None}, {"title": "x", "created_at": "yesterday-ish"}, {"title": "x", "done": None}],
)
def test_values_against_constraints_are_refused(lists: SharedLists, values: dict[str, object]) -> None:
    lists.refused(lists.ada, put("todos", None, **{"list_id": lists.adas, **values}))


def title_of(lists: SharedLists, todo: str) -> str:
    return str(lists.db.fetch("select title from todos where id = %s", todo)[0][0])


def test_title_conflict_is_kept(lists: SharedLists) -> None:
    todo = lists.todo_of(lists.common)
    old = title_of(lists, todo)
    lists.send(lists.ada, patch("todos", todo, {"title": old}, title="Hers"))
    refused = lists.refused(lists.ben, patch("todos", todo, {"title": old}, title="His"))
    assert (refused["sqlstate"], title_of(lists, todo)) == ("HW409", "Hers")
    # he has seen hers by now
    lists.send(lists.ben, patch("todos", todo, {"title": "Hers"}, title="His"))
    assert title_of(lists, todo) == "His"


def test_no_conflict_without_old_title(lists: SharedLists) -> None:
    todo = lists.todo_of(lists.common)
    old = title_of(lists, todo)
    lists.send(lists.ada, patch("todos", todo, {"title": old}, title="New"))
    lists.send(lists.ben, patch("todos", todo, {}, done=True), patch("todos", todo, {"title": old}, title="New"))
    lists.send(lists.ben, patch("todos", todo, title="Last"))
    assert title_of(lists, todo) == "Last"


def test_statements_are_logged_with_sender(lists: SharedLists) -> None:
    todo = lists.todo_of(lists.common)
    lists.send(lists.ben, patch("todos", todo, done=True))
    lists.db.execute("update todos set notes = 'x' where list_id = %s", lists.common)
    kept = lists.db.fetch("select by, relation, rows, ids, sql from demo.writes order by number")
    (by, relation, rows, ids, sql), by_hand = kept
    assert (by, relation, rows, ids) == (lists.ben, "todos", 1, [todo])
    assert sql.startswith('update "public"."todos" set "done" = ')
    assert by_hand[0] is None
    assert (by_hand[2], len(by_hand[3])) == (20, 20)
    assert by_hand[4] == "update todos set notes = 'x' where list_id = $1"


def test_old_statements_are_pruned(lists: SharedLists) -> None:
    todo = lists.todo_of(lists.common)
    lists.db.execute(
        "do $$ begin for n in 1..1000 loop update todos set notes = n::text where id = '" + todo + "'; end loop; end $$"
    )
    assert lists.db.fetch("select count(*), max(number) from demo.writes") == [(500, 1000)]
