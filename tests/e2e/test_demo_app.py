"""The demo app in a real browser, on a real `headwater dev`: what two people see of each other's changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.support.dev_run import Run, running
from tests.support.fix_browser import Browser
from tests.support.fix_headwater import wait_until
from tests.support.terminal import Terminal

ADDRESS = r"http://127\.0\.0\.1:\d+/demo/"
LEFT = "[data-testid=panel-left]"
RIGHT = "[data-testid=panel-right]"


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
    """The demo app with both devices synced for the first time."""
    browser.goto(demo.wait_for(ADDRESS))
    for panel in (LEFT, RIGHT):
        wait_synced(browser, panel)
    return browser


def wait_synced(page: Browser, panel: str) -> None:
    page.wait_for(part(panel, "status", "[data-state=synced]"), deadline=60)


def add_todo(page: Browser, panel: str, title: str) -> None:
    page.type(part(panel, "new-todo"), title)
    page.press("Enter")


def test_it_says_where_it_is_and_has_people_and_a_source_of_its_own(demo: Run) -> None:
    address = demo.wait_for(ADDRESS)
    users = httpx.get(f"{address}users").json()
    assert [user["name"] for user in users[:2]] == ["Ada", "Ben"]
    assert httpx.get(address.removesuffix("demo/") + "probes/readiness").status_code == 200
    with psycopg.connect(demo.wait_for(r"postgresql://\S+")) as conn:
        assert conn.execute("select active from pg_replication_slots").fetchall() == [(True,)]


def test_what_one_person_adds_and_ticks_the_other_sees(page: Browser) -> None:
    page.wait_for(part(LEFT, "list-name"))
    assert page.texts(part(LEFT, "list-name")) == page.texts(part(RIGHT, "list-name")), "both begin with a common list"

    add_todo(page, LEFT, "Paint the fence")
    page.wait_for(part(RIGHT, "todo-title"), "Paint the fence")
    assert page.focused() == "new-todo"

    page.click(part(RIGHT, "todo", ":has([aria-label='Delete Paint the fence']) [data-testid=todo-done]"))
    page.wait_for(part(LEFT, "todo", "[data-done=true]:has([aria-label='Delete Paint the fence'])"))

    page.click(part(LEFT, "todo", " [aria-label='Delete Paint the fence']"))
    page.wait_gone(part(RIGHT, "todo-title"), "Paint the fence")


def test_a_device_that_was_offline_sends_and_receives_what_it_missed(page: Browser) -> None:
    page.click(part(RIGHT, "offline"))
    page.wait_for(part(RIGHT, "status", "[data-state=offline]"))
    add_todo(page, RIGHT, "Written offline")
    page.wait_for(part(RIGHT, "status", "[data-waiting='1']"))
    add_todo(page, LEFT, "Written online")
    page.wait_for(part(LEFT, "todo-title"), "Written online")
    wait_synced(page, LEFT)
    assert "Written online" not in page.texts(part(RIGHT, "todo-title"))

    page.click(part(RIGHT, "offline"))

    page.wait_for(part(RIGHT, "todo-title"), "Written online")
    page.wait_for(part(LEFT, "todo-title"), "Written offline")
    wait_synced(page, RIGHT)


def test_a_write_made_offline_outlives_a_reload(page: Browser) -> None:
    page.click(part(LEFT, "offline"))
    page.wait_for(part(LEFT, "status", "[data-state=offline]"))
    add_todo(page, LEFT, "Written before the reload")
    page.wait_for(part(LEFT, "status", "[data-waiting='1']"))

    page.reload()

    page.wait_for(part(RIGHT, "todo-title"), "Written before the reload")


def test_a_list_is_on_the_other_device_for_as_long_as_it_is_shared(page: Browser) -> None:
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


@pytest.fixture
def terminal(demo: Run, tmp_path: Path) -> Iterator[Terminal]:
    """The to-do app of the terminal, as the person on the left."""
    with Terminal(demo.wait_for(ADDRESS), tmp_path / "terminal.db") as terminal:
        yield terminal


@pytest.mark.long
def test_the_terminal_and_the_page_edit_one_list(page: Browser, terminal: Terminal) -> None:
    """What is written offline arrives later, and a conflict ends everywhere as the docs say."""
    for title in ("Ticked offline, deleted on the page", "Deleted offline, ticked on the page"):
        add_todo(page, LEFT, title)
        page.wait_for(part(RIGHT, "todo-title"), title)
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
