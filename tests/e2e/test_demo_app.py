"""The demo app in a real browser, on a real `headwater dev`: what two people see of each other's changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from headwater_client import Database, Refusal, UploadConnector
from tests.e2e.terminal import Terminal
from tests.support.dev_run import Run, running
from tests.support.example_schemas import make_example
from tests.support.fix_browser import Browser
from tests.support.fix_postgres import SourceDb
from tests.support.waiting import wait_until

ADDRESS = r"http://127\.0\.0\.1:\d+/demo/"
LEFT = "[data-testid=panel-left]"
RIGHT = "[data-testid=panel-right]"
NEWEST = "[data-testid=happening]:first-child"
DESKTOP = (1440, 1000)
PHONE = (390, 844)


def part(panel: str, name: str, more: str = "") -> str:
    """The selector of a named part of a panel."""
    return f"{panel} [data-testid={name}]{more}"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A `headwater dev` that serves the demo app. In the end Ctrl-C leaves nothing of it behind."""
    with running(tmp_path_factory.mktemp("demo"), "--port", "0") as run:
        run.wait_for(ADDRESS)
        yield run
        run.leaves_nothing()


@pytest.fixture
def page(browser: Browser, demo: Run) -> Browser:
    """The demo app with both devices synced for the first time, and what they have on the screen."""
    browser.goto(demo.wait_for(ADDRESS))
    for panel in (LEFT, RIGHT):
        wait_synced(browser, panel)
        browser.wait_for(part(panel, "todo"))
    return browser


def wait_synced(page: Browser, panel: str) -> None:
    page.wait_for(part(panel, "status", "[data-state=synced]"), deadline=60)


def add_todo(page: Browser, panel: str, title: str, seen_on: str = "") -> None:
    page.type(part(panel, "new-todo"), title)
    page.press("Enter")
    if seen_on:
        page.wait_for(part(seen_on, "todo-title"), title)


def rename(page: Browser, panel: str, title: str, to: str) -> None:
    page.click(part(panel, "todo", f":has([aria-label='Delete {title}']) [data-testid=todo-title]"))
    page.press("Backspace")  # the title is selected
    page.type(part(panel, "todo-title-field", ":focus"), to)
    page.press("Enter")


def test_demo_starts(demo: Run) -> None:
    address = demo.wait_for(ADDRESS)
    users = httpx.get(f"{address}users").json()
    assert [user["name"] for user in users[:2]] == ["Ada", "Ben"]
    assert httpx.get(address.removesuffix("demo/") + "probes/readiness").status_code == 200
    with psycopg.connect(demo.wait_for(r"postgresql://\S+")) as conn:
        assert conn.execute("select active from pg_replication_slots").fetchall() == [(True,)]


def test_people_see_each_others_writes(page: Browser) -> None:
    page.wait_for(part(LEFT, "list-name"))
    assert page.texts(part(LEFT, "list-name")) == page.texts(part(RIGHT, "list-name")), "both begin with a common list"

    add_todo(page, LEFT, "Paint the fence", seen_on=RIGHT)
    assert page.focused() == "new-todo"
    page.wait_for(f"{NEWEST} [data-testid=what]", "Ada: insert “Paint the fence”")
    page.wait_for(f"{NEWEST} [data-testid=time-right]")
    assert page.texts(f"{NEWEST} [data-testid=sql]")[0].startswith("insert into public.todos (id, ")
    assert re.fullmatch(r"PUT \d+ in bucket todos · Weekend together", page.texts(f"{NEWEST} [data-testid=op]")[0])
    assert re.fullmatch(r"Ben: \d+ m?s after the commit", page.texts(f"{NEWEST} [data-testid=screen-right]")[0])
    page.wait_for("[data-testid=verdict-right]", "Ben gets it, by line 30")
    assert "WHERE list_id IN (SELECT list_id FROM list_members" in page.texts("code.giving")[0]
    touched = page.attributes("[data-testid=bucket].touched", "data-holders")
    assert touched == ["left right"], "the op is in one bucket, which both have"

    page.click(part(RIGHT, "todo", ":has([aria-label='Delete Paint the fence']) [data-testid=todo-done]"))
    page.wait_for(part(LEFT, "todo", "[data-done=true]:has([aria-label='Delete Paint the fence'])"))

    page.click(part(LEFT, "todo", " [aria-label='Delete Paint the fence']"))
    page.wait_gone(part(RIGHT, "todo-title"), "Paint the fence")


@pytest.mark.long
def test_offline_phone_syncs_and_hears_of_conflict(page: Browser) -> None:
    page.resize(*PHONE)
    for title in ("Bring a rope", "Bring a map"):
        add_todo(page, LEFT, title, seen_on=RIGHT)
    wait_synced(page, LEFT)
    page.click(part(RIGHT, "offline"))
    page.wait_for(part(RIGHT, "status", "[data-state=offline]"))
    add_todo(page, RIGHT, "Written offline")
    page.wait_for(part(RIGHT, "status", "[data-waiting='1']"))
    rename(page, RIGHT, "Bring a rope", "Bring two ropes")
    page.wait_for(part(RIGHT, "status", "[data-waiting='2']"))
    assert [text.split("  ")[0][:12] for text in page.texts("[data-testid=waiting] li")] == [
        "Ben PUT todo",
        "Ben PATCH to",
    ]
    rename(page, LEFT, "Bring a rope", "Bring a strong rope")
    page.wait_for(part(LEFT, "todo-title"), "Bring a strong rope")
    wait_synced(page, LEFT)
    assert "Bring a strong rope" not in page.texts(part(RIGHT, "todo-title"))

    page.click(part(RIGHT, "offline"))

    page.wait_for(part(RIGHT, "mine"), "Bring two ropes", deadline=60)
    page.wait_for(part(RIGHT, "theirs"), "Bring a strong rope")
    page.wait_for(part(RIGHT, "todo-title"), "Bring a strong rope")
    page.wait_for(part(LEFT, "todo-title"), "Written offline")
    page.click(part(RIGHT, "mine-again"))
    page.wait_for(part(LEFT, "todo-title"), "Bring two ropes")
    page.wait_gone(part(RIGHT, "conflict"))
    wait_synced(page, RIGHT)


def test_offline_write_outlives_reload(page: Browser) -> None:
    page.click(part(LEFT, "offline"))
    page.wait_for(part(LEFT, "status", "[data-state=offline]"))
    add_todo(page, LEFT, "Written before the reload")
    page.wait_for(part(LEFT, "status", "[data-waiting='1']"))

    page.reload()

    page.wait_for(part(RIGHT, "todo-title"), "Written before the reload")


def test_shared_list_comes_and_goes(page: Browser) -> None:
    page.type(part(LEFT, "new-list"), "Surprise party")
    page.press("Enter")
    page.wait_for(part(LEFT, "list-name"), "Surprise party")
    add_todo(page, LEFT, "Order the cake")
    page.wait_for(part(LEFT, "todo-title"), "Order the cake")
    wait_synced(page, LEFT)
    assert "Surprise party" not in page.texts(part(RIGHT, "list"))

    page.click(part(LEFT, "share"))
    page.wait_for(part(RIGHT, "list"), "Surprise party")
    page.click(part(RIGHT, "list", "[data-name='Surprise party']"))
    page.wait_for(part(RIGHT, "todo-title"), "Order the cake")

    page.click(part(LEFT, "share"))
    page.wait_gone(part(RIGHT, "list"), "Surprise party")
    page.wait_gone(part(RIGHT, "todo-title"), "Order the cake")


def test_events_are_for_those_concerned(demo: Run) -> None:
    address = demo.wait_for(ADDRESS)
    with httpx.Client(base_url=address) as client:
        for path in ("about", "trace", "explain?table=todos&id=1"):
            assert client.get(path).status_code == 401
        ada = signed_in(client, 0)
        assert [
            client.get(f"{path}", headers=ada).status_code for path in ("trace?after=x", "explain?table=lists")
        ] == [400, 400]
        before = client.get("trace", headers=ada).json()
        assert before["commits"] == []
        with psycopg.connect(demo.wait_for(r"postgresql://\S+"), autocommit=True) as conn:
            for name in ("Reading", "Holiday"):  # a list of hers, and one of his
                conn.execute(_ADD, [name])

        def told(person: int) -> list[str]:
            commits = client.get(
                "trace", params={"after": before["checkpoint"]}, headers=signed_in(client, person)
            ).json()
            return [op["data"]["title"] for commit in commits["commits"] for op in commit["ops"]]

        wait_until(lambda: (told(0), told(1)) == (["By hand: Reading"], ["By hand: Holiday"]), "each hears of his own")


_ADD = """insert into todos (id, list_id, title)
select gen_random_uuid(), id, 'By hand: ' || name from lists where name = %s and id in
(select list_id from list_members join users on users.id = user_id where users.name in ('Ada', 'Ben'))"""


def signed_in(client: httpx.Client, person: int) -> dict[str, str]:
    user = client.get("users").json()[person]["id"]
    return {"authorization": f"Bearer {client.get('token', params={'user': user}).json()['token']}"}


@pytest.mark.long
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_both_people_beside_each_other(page: Browser, demo: Run, size: tuple[int, int]) -> None:
    page.resize(*size)
    with psycopg.connect(demo.wait_for(r"postgresql://\S+"), autocommit=True) as conn:
        conn.execute(
            """insert into todos (id, list_id, title, notes)
               select gen_random_uuid(), id, %s, repeat('A note without end. ', 5000)
               from lists where name = 'Weekend together'""",
            [LONG_WORD],
        )
    page.wait_for(part(RIGHT, "todo-title"), LONG_WORD)
    left, right = (page.boxes(panel)[0] for panel in (LEFT, RIGHT))
    assert 0 <= left.left < left.right <= right.left < right.right <= size[0]
    assert left.top == right.top < size[1] / 3
    for panel, column in ((LEFT, left), (RIGHT, right)):
        rows = page.boxes(part(panel, "todo", " *"))
        assert rows
        assert all(column.left <= box.left and box.right <= column.right for box in rows if box.right > box.left)
    page.click(part(RIGHT, "todo", f" [aria-label='Delete {LONG_WORD}']"))
    page.wait_gone(part(LEFT, "todo-title"), LONG_WORD)


LONG_WORD = "Donaudampfschifffahrtsgesellschaft" * 4


@pytest.mark.long
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing(page: Browser, size: tuple[int, int]) -> None:
    page.resize(*size)
    page.click("[data-testid=play-conflict]")
    page.wait_for(part(RIGHT, "conflict"))
    page.click(part(RIGHT, "offline"))
    add_todo(page, RIGHT, "Not sent yet")
    page.wait_for("[data-testid=waiting] li")
    page.click("summary")
    page.click(part(LEFT, "todo-title"))
    page.wait_for(part(LEFT, "todo-title-field", ":focus"))
    for dark in (False, True):
        page.dark(dark)
        found = page.findings()
        assert [each for each in found if each.startswith(("serious", "critical"))] == []


@pytest.mark.long
def test_title_is_edited_in_place(page: Browser, demo: Run) -> None:
    add_todo(page, LEFT, "Mend the tent", seen_on=RIGHT)
    wait_synced(page, LEFT)
    page.click(part(RIGHT, "todo", ":has([aria-label='Delete Mend the tent']) [data-testid=todo-title]"))
    with psycopg.connect(demo.wait_for(r"postgresql://\S+"), autocommit=True) as conn:
        conn.execute("update todos set title = 'Mend the big tent' where title = 'Mend the tent'")
    page.wait_for(f"{RIGHT} .meanwhile", "Meanwhile: Mend the big tent")
    page.press("Escape")
    page.wait_for(part(RIGHT, "todo-title"), "Mend the big tent")
    assert page.focused() == "todo-title"

    page.click(part(LEFT, "list-name"))
    page.press("Backspace")
    page.type(part(LEFT, "list-name-field"), "Weekend at the lake")
    page.press("Enter")
    page.wait_for(part(RIGHT, "list-name"), "Weekend at the lake")
    page.click(part(RIGHT, "list-name"))
    page.press("Backspace")
    page.type(part(RIGHT, "list-name-field"), "Weekend together")
    page.press("Enter")
    page.wait_for(part(LEFT, "list-name"), "Weekend together")


def test_refused_write_is_undone_with_reason(page: Browser) -> None:
    page.click("[data-testid=play-refused]")
    page.wait_for(part(RIGHT, "refused-why"), "You may not change this.")
    page.wait_for(part(RIGHT, "refused-now"), "So it is back on this device.")
    assert page.texts(part(RIGHT, "refused-what"))[0].startswith(
        "The server refused to delete the list “Weekend together”. What you sent is kept as dead letter "
    )
    page.wait_for(part(RIGHT, "list-name"), "Weekend together")
    page.wait_for("[data-testid=told]", "see Ben's side.")
    assert page.texts(part(LEFT, "refused")) == []

    page.reload()
    page.wait_for(part(RIGHT, "refused-why"), "You may not change this.")
    page.click(part(RIGHT, "dismiss"))
    page.wait_gone(part(RIGHT, "refused"))


def test_removed_list_is_explained(page: Browser, demo: Run) -> None:
    with psycopg.connect(demo.wait_for(r"postgresql://\S+"), autocommit=True) as conn:
        ((ada,),) = conn.execute("select id from users order by created_at, id limit 1").fetchall()
        conn.execute("insert into lists (id, owner_id, name) values (gen_random_uuid(), %s, 'Short-lived')", [ada])
        page.wait_for("[data-testid=verdict-left]", "Ada gets it, by line 15")
        conn.execute("delete from lists where name = 'Short-lived'")
    page.wait_for("[data-testid=verdict-left]", "Ada had it, and it is gone")
    page.wait_for("code.giving")


@pytest.mark.long
def test_sql_and_hidden_row_are_explained(page: Browser, demo: Run) -> None:
    with psycopg.connect(demo.wait_for(r"postgresql://\S+"), autocommit=True) as conn:
        conn.execute(_ADD, ["Reading"])
        page.wait_for(f"{NEWEST} [data-testid=what]", "SQL by hand: insert “By hand: Reading”")
        page.wait_for("[data-testid=verdict-left]", "Ada gets it, by line 30")
        page.wait_for("[data-testid=verdict-right][data-included=false]")
        assert "Ben does not get it" in page.texts("[data-testid=verdict-right]")[0]
        assert page.texts(f"{NEWEST} [data-testid=screen-right]") == ["Ben: not concerned"]
        conn.execute("delete from todos where title = 'By hand: Reading'")
    page.wait_for("[data-testid=verdict-left]", "Ada had it, and it is gone")
    assert "REMOVE" in page.texts(f"{NEWEST} [data-testid=op]")[0]
    page.click(part(LEFT, "todo-why"))
    page.wait_for("[data-testid=verdict-right]", "Ben gets it, by line 30")


@pytest.fixture
def terminal(demo: Run, tmp_path: Path) -> Iterator[Terminal]:
    """The to-do app of the terminal, as the person on the left."""
    with Terminal(demo.wait_for(ADDRESS), tmp_path / "terminal.db") as terminal:
        yield terminal


@pytest.mark.long
def test_terminal_and_page_edit_one_list(page: Browser, terminal: Terminal) -> None:
    """What is written offline arrives later, and a conflict ends everywhere as the docs say."""
    for title in ("Ticked offline, deleted on the page", "Deleted offline, ticked on the page"):
        add_todo(page, LEFT, title, seen_on=RIGHT)
    database = terminal.database
    wait_until(lambda: terminal.shows("Deleted offline, ticked on the page"), "the page's to-dos in the terminal")
    terminal.chooses("Deleted offline, ticked on the page")
    terminal.adds("Written in the terminal")
    page.wait_for(part(RIGHT, "todo-title"), "Written in the terminal")

    terminal.presses("ctrl+o")
    wait_until(lambda: not database.status.connected, "the terminal offline")
    terminal.chooses("Written in the terminal")
    terminal.adds("Written offline in the terminal")
    database["todos"].update(terminal.id_of("Ticked offline, deleted on the page"), {"done": 1})
    database["todos"].delete(terminal.id_of("Deleted offline, ticked on the page"))
    page.click(part(LEFT, "todo", " [aria-label='Delete Ticked offline, deleted on the page']"))
    ticked = ":has([aria-label='Delete Deleted offline, ticked on the page']) [data-testid=todo-done]"
    page.click(part(RIGHT, "todo", ticked))
    for panel in (LEFT, RIGHT):
        page.wait_gone(part(panel, "todo-title"), "Ticked offline, deleted on the page")
        wait_synced(page, panel)
    terminal.presses("ctrl+o")

    for panel in (LEFT, RIGHT):
        page.wait_for(part(panel, "todo-title"), "Written offline in the terminal")
        page.wait_gone(part(panel, "todo-title"), "Deleted offline, ticked on the page")
    wait_until(database.confirmed, "everything sent")
    expected = sorted(page.texts(part(LEFT, "todo-title")))
    wait_until(lambda: terminal.titles_beside("Written in the terminal") == expected, "the same to-dos in the terminal")
    assert sorted(page.texts(part(RIGHT, "todo-title"))) == expected
    assert len(terminal.refused) == 1, "the tick of a row that was gone is put aside"


@pytest.mark.long
def test_two_devices_and_page_with_one_offline(page: Browser, demo: Run, tmp_path: Path) -> None:
    """Nothing is lost: of each column the last upload counts, and what is deleted stays deleted."""
    page.wait_for(part(LEFT, "list-name"))
    titles = ("Ticked and renamed", "Renamed by both", "Deleted and renamed", "Left alone")
    for title in titles:
        add_todo(page, LEFT, title, seen_on=RIGHT)
    refused: list[Refusal] = []
    with demo_device(demo, tmp_path / "laptop.db", refused) as laptop, demo_device(demo, tmp_path / "pi.db") as pi:
        ids = {}
        for title in titles:
            wait_until(lambda t=title: bool(id_of(laptop, t) and id_of(pi, t)), f"{title!r} on both devices")  # type: ignore[misc]
            ids[title] = id_of(laptop, title)
        (row,) = laptop.rows("select list_id from todos where id = ?", [ids["Left alone"]])
        laptop.disconnect()

        todos = laptop["todos"]
        todos.update(ids["Ticked and renamed"], {"title": "Renamed offline"})
        todos.update(ids["Renamed by both"], {"title": "Named offline"})
        todos.update(ids["Deleted and renamed"], {"title": "Named too late"})
        for number in range(20):
            todos.insert({"list_id": row["list_id"], "title": f"Offline {number}", "done": 0})

        pi["todos"].update(ids["Ticked and renamed"], {"done": 1})
        pi["todos"].update(ids["Renamed by both"], {"title": "Named online"})
        pi["todos"].insert({"list_id": row["list_id"], "title": "Of the Pi", "done": 0})
        page.click(part(LEFT, "todo", " [aria-label='Delete Deleted and renamed']"))
        add_todo(page, RIGHT, "Of the page")
        wait_until(pi.confirmed, "what the Pi wrote")
        for panel in (LEFT, RIGHT):
            page.wait_for(part(panel, "todo-title"), "Named online")
            page.wait_gone(part(panel, "todo-title"), "Deleted and renamed")
            page.wait_for(part(panel, "todo-title"), "Of the page")
            wait_synced(page, panel)
        laptop.connect(demo_connector(demo, refused))

        wait_until(laptop.confirmed, "what was written offline")
        left = {"Renamed offline", "Named offline", "Left alone", "Of the Pi", "Of the page"}
        left |= {f"Offline {number}" for number in range(20)}
        gone = {*titles, "Named online", "Named too late"} - left
        for device in (laptop, pi):
            wait_until(lambda d=device: left <= titles_of(d, row) and not gone & titles_of(d, row), "a device")  # type: ignore[misc]
        for panel in (LEFT, RIGHT):
            page.wait_for(part(panel, "todo-title"), "Offline 19")
            wait_until(lambda p=panel: set(page.texts(part(p, "todo-title"))) == titles_of(pi, row), "a panel")  # type: ignore[misc]
        assert laptop["todos"].get(ids["Ticked and renamed"])["done"] == 1, "the tick of another is kept"
        assert titles_of(laptop, row) == titles_of(pi, row)
        assert len(refused) == 1, "the change of a row that was gone is put aside"


def demo_connector(demo: Run, refused: list[Refusal]) -> UploadConnector:
    address = demo.wait_for(ADDRESS)
    user = httpx.get(f"{address}users").json()[0]["id"]

    def ask() -> dict[str, str]:
        answer: dict[str, str] = httpx.get(f"{address}token", params={"user": user}).raise_for_status().json()
        return answer

    return UploadConnector(ask()["endpoint"], lambda: ask()["token"], refused.append)


@contextmanager
def demo_device(demo: Run, file: Path, refused: list[Refusal] | None = None) -> Iterator[Database]:
    """A connected device in Python of the person on the left."""
    columns = {"list_id": "text", "title": "text", "done": "integer", "created_at": "text"}
    with Database(file, {"todos": columns}) as database:
        database.connect(demo_connector(demo, [] if refused is None else refused))
        database.wait_for_first_sync(60)
        yield database


def id_of(device: Database, title: str) -> str:
    """Of the newest to-do with this title; empty where there is none."""
    found = device.rows("select id from todos where title = ? order by created_at desc limit 1", [title])
    return str(found[0]["id"]) if found else ""


def titles_of(device: Database, row: dict[str, str]) -> set[str]:
    return {str(each["title"]) for each in device.rows("select title from todos where list_id = ?", [row["list_id"]])}


@pytest.mark.long
def test_own_tables_are_shown_and_left_clean(browser: Browser, source_db: SourceDb, tmp_path: Path) -> None:
    make_example(source_db, "prisma")
    uri = f"postgresql://postgres@127.0.0.1:{source_db.server.port}/{source_db.name}"
    with running(tmp_path / "own", "--port", "0", "--uri", uri) as run:
        browser.goto(run.wait_for(ADDRESS))
        browser.wait_for(part(LEFT, "row", "[data-id=cljob1]"))
        assert browser.attributes(part(RIGHT, "row"), "data-id") == ["cljob2"]
        source_db.execute("update \"Job\" set title = 'changed' where id = 'cljob1'")
        browser.wait_for(part(LEFT, "row", "[data-id=cljob1] td"), "changed")
        browser.wait_for(f"{NEWEST} [data-testid=what]", "Somebody: change “changed”")
        browser.wait_for("[data-testid=verdict-left]", "ann@example.com gets it, by line 14")
        assert browser.texts("code.giving") == ['WHERE "technicianId" = auth.user_id()']
        assert browser.attributes("[data-testid=verdict-right]", "data-included") == ["false"]
        assert browser.findings() == []
        run.leaves_nothing()
    assert source_db.fetch("select slot_name from pg_replication_slots where database = current_database()") == []
    assert source_db.fetch("select pubname from pg_publication") == []
