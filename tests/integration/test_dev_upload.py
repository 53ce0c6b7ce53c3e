"""Who may write what of the demo, and what of it is in the database afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headwater.dev.sample import ROLE, WRITABLE
from headwater.source.upload.prepare import check_uploads
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import Entry, Uploads, delete, patch
from tests.support.fix_upload import put as put_row


@dataclass
class World:
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
def world(demo_db: SourceDb, uploads_of: Callable[..., Uploads]) -> World:
    (ada,), (ben,) = demo_db.fetch("select id from users order by created_at, id limit 2")

    def list_of(owner: uuid.UUID, name: str) -> str:
        return str(demo_db.fetch("select id from lists where owner_id = %s and name = %s", owner, name)[0][0])

    return World(
        uploads_of(WRITABLE, role=ROLE), str(ada), str(ben),
        list_of(ada, "Weekend together"), list_of(ada, "Reading"), list_of(ben, "Holiday"),
    )  # fmt: skip


def put(table: str, row_id: str | None = None, **values: object) -> Entry:
    return put_row(table, row_id or str(uuid.uuid4()), **values)


def new_list(owner: str) -> tuple[Entry, Entry]:
    """A list as the demo app sends it: together with the row that makes its owner a member."""
    made = put("lists", owner_id=owner, name="Picnic", created_at="2025-06-01T10:00:00.000Z")
    return made, put("list_members", list_id=made["id"], user_id=owner, role="owner")


def test_a_check_finds_nothing_wrong_with_it(world: World) -> None:
    assert check_uploads(world.uploads.settings) == ()


def test_a_list_is_made_shared_and_no_longer_shared(world: World) -> None:
    made, seat = new_list(world.ada)
    world.send(world.ada, made, seat)
    guest = put("list_members", list_id=made["id"], user_id=world.ben, role="member")
    world.send(world.ada, guest)
    world.send(world.ben, put("todos", list_id=made["id"], title="Bring plates", done=False))
    world.send(world.ada, delete("list_members", guest["id"]))
    world.refused(world.ben, put("todos", list_id=made["id"], title="Bring forks", done=False))
    assert world.db.fetch("select title from todos where list_id = %s", made["id"]) == [("Bring plates",)]


@pytest.mark.parametrize("person", ["ada", "ben"])
def test_both_people_may_change_the_to_dos_of_the_common_list(world: World, person: str) -> None:
    user = world.ada if person == "ada" else world.ben
    todo = world.todo_of(world.common)
    world.send(user, patch("todos", todo, done=True, completed_at="2025-06-01T10:00:00.000Z"))
    assert world.db.fetch("select done, completed_at is not null from todos where id = %s", todo) == [(True, True)]
    world.send(user, patch("todos", todo, done=False, completed_at=None))
    assert world.db.fetch("select done, completed_at from todos where id = %s", todo) == [(False, None)]
    world.send(user, delete("todos", todo))
    assert world.count("todos", todo) == 0


def test_a_batch_that_is_sent_again_changes_nothing_more(world: World) -> None:
    made, seat = new_list(world.ada)
    todo = put("todos", list_id=made["id"], title="Blanket", done=False)
    writes = (made, seat, todo, patch("todos", todo["id"], done=True))
    device = world.uploads.device(world.ada)
    sent = device.transaction(*writes)
    assert [device.answers(sent)[0]["outcome"] for _ in range(2)] == ["applied", "already_applied"]
    world.send(world.ada, delete("todos", todo["id"]))
    world.send(world.ada, delete("todos", todo["id"]))
    assert (world.count("lists", made["id"]), world.count("todos", todo["id"])) == (1, 0)


def test_a_batch_with_one_refused_write_leaves_nothing(world: World) -> None:
    todo = put("todos", list_id=world.bens, title="Mine", done=False)
    world.refused(world.ben, todo, patch("todos", world.todo_of(world.adas), title="Yours"))
    assert world.count("todos", todo["id"]) == 0


def test_what_belongs_to_others_cannot_be_written(world: World) -> None:
    secret = world.todo_of(world.adas)
    own = world.todo_of(world.bens)
    seat = world.db.fetch("select id from list_members where list_id = %s and user_id = %s", world.adas, world.ada)
    before = everything(world)
    for write in (
        put("todos", list_id=world.adas, title="x", done=False),
        put("todos", secret, list_id=world.bens, title="taken over", done=False),
        patch("todos", secret, title="x"),
        patch("todos", secret, list_id=world.bens),
        patch("todos", own, list_id=world.adas),
        patch("lists", world.adas, name="x"),
        put("lists", world.adas, owner_id=world.ben, name="x"),
        put("lists", world.adas, name="x"),
        put("lists", owner_id=world.ada, name="in her name"),
        put("list_members", list_id=world.adas, user_id=world.ben, role="member"),
        put("list_members", list_id=world.adas, user_id=world.ben, role="owner"),
        # the common list is hers: he may work on its to-dos, and no more
        delete("lists", world.common),
        patch("lists", world.common, owner_id=world.ben),
        put("list_members", list_id=world.common, user_id=str(uuid.uuid4()), role="member"),
    ):
        world.refused(world.ben, write)
    # what he does not see is not there for him
    world.send(world.ben, delete("todos", secret), delete("lists", world.adas), delete("list_members", str(seat[0][0])))
    assert everything(world) == before


def everything(world: World) -> list[tuple[str]]:
    tables = ("lists", "list_members", "todos")
    return [world.db.fetch(f"select md5(string_agg(t::text, '' order by id)) from {table} t")[0] for table in tables]


def test_a_list_has_one_owner(world: World) -> None:
    seats = dict(world.db.fetch("select user_id::text, id::text from list_members where list_id = %s", world.common))
    for write in (
        put("list_members", list_id=world.common, user_id=world.ben, role="owner"),
        delete("list_members", seats[world.ada]),
    ):
        world.refused(world.ada, write)
    world.send(world.ben, delete("list_members", seats[world.ben]))
    assert world.count("list_members", seats[world.ben]) == 0


def test_a_write_to_what_is_gone_is_given_up_and_not_tried_for_ever(world: World) -> None:
    todo = world.todo_of(world.common)
    world.db.execute("delete from lists where id = %s", world.common)
    stranger = put("list_members", list_id=world.bens, user_id=str(uuid.uuid4()), role="member")
    for write in (
        patch("todos", todo, done=True),
        put("todos", list_id=world.common, title="x", done=False),
        patch("lists", world.common, name="x"),
        put("list_members", list_id=world.common, user_id=world.ada, role="owner"),
        stranger,
    ):
        world.refused(world.ben, write)
    world.send(world.ben, delete("todos", todo), delete("lists", world.common))


def test_shared_twice_the_second_time_is_refused_as_being_there_already(world: World) -> None:
    again = world.refused(world.ada, put("list_members", list_id=world.common, user_id=world.ben, role="member"))
    assert again["sqlstate"] == "23505"


@pytest.mark.parametrize(
    "values",
    [{"title": ""}, {"title": None}, {"title": "x", "created_at": "yesterday-ish"}, {"title": "x", "done": None}],
)
def test_values_that_the_tables_do_not_take_are_refused_for_good(world: World, values: dict[str, object]) -> None:
    world.refused(world.ada, put("todos", None, **{"list_id": world.adas, **values}))


def title_of(world: World, todo: str) -> str:
    return str(world.db.fetch("select title from todos where id = %s", todo)[0][0])


def test_of_two_titles_the_first_stands_and_the_other_is_kept_for_a_person_to_decide(world: World) -> None:
    todo = world.todo_of(world.common)
    old = title_of(world, todo)
    world.send(world.ada, patch("todos", todo, {"title": old}, title="Hers"))
    refused = world.refused(world.ben, patch("todos", todo, {"title": old}, title="His"))
    assert (refused["sqlstate"], title_of(world, todo)) == ("HW409", "Hers")
    # he has seen hers by now
    world.send(world.ben, patch("todos", todo, {"title": "Hers"}, title="His"))
    assert title_of(world, todo) == "His"


def test_ticks_the_same_title_twice_and_devices_that_tell_no_title_are_no_conflict(world: World) -> None:
    todo = world.todo_of(world.common)
    old = title_of(world, todo)
    world.send(world.ada, patch("todos", todo, {"title": old}, title="New"))
    world.send(world.ben, patch("todos", todo, {}, done=True), patch("todos", todo, {"title": old}, title="New"))
    world.send(world.ben, patch("todos", todo, title="Last"))
    assert title_of(world, todo) == "Last"


def test_each_statement_that_writes_is_kept_with_who_sent_it(world: World) -> None:
    todo = world.todo_of(world.common)
    world.send(world.ben, patch("todos", todo, done=True))
    world.db.execute("update todos set notes = 'x' where list_id = %s", world.common)
    kept = world.db.fetch("select by, relation, rows, ids, sql from demo.writes order by number")
    (by, relation, rows, ids, sql), by_hand = kept
    assert (by, relation, rows, ids) == (world.ben, "todos", 1, [todo])
    assert sql.startswith('update "public"."todos" set "done" = ')
    assert by_hand[0] is None
    assert (by_hand[2], len(by_hand[3])) == (20, 20)
    assert by_hand[4] == "update todos set notes = 'x' where list_id = $1"


def test_the_oldest_statements_are_forgotten(world: World) -> None:
    todo = world.todo_of(world.common)
    world.db.execute(
        "do $$ begin for n in 1..1000 loop update todos set notes = n::text where id = '" + todo + "'; end loop; end $$"
    )
    assert world.db.fetch("select count(*), max(number) from demo.writes") == [(500, 1000)]
