"""The demo app in a real browser, on a real `headwater dev`: what two people see of each other's changes."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fix_browser import Browser

START_DEADLINE = 300.0
STOP_DEADLINE = 60.0

LEFT = "[data-testid=panel-left]"
RIGHT = "[data-testid=panel-right]"


def part(panel: str, name: str, more: str = "") -> str:
    """The selector of a named part of a panel."""
    return f"{panel} [data-testid={name}]{more}"


@pytest.fixture(scope="module")
def demo_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a `headwater dev` of its own serves the demo app."""
    folder = tmp_path_factory.mktemp("demo")
    output = folder / "output"
    command = [str(Path(sys.executable).with_name("headwater")), "dev", "--port", "0"]
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield _announced_url(process, output)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


def _announced_url(process: subprocess.Popen[bytes], output: Path) -> str:
    deadline = time.monotonic() + START_DEADLINE
    while True:
        ended = process.poll() is not None
        printed = output.read_text(errors="replace")
        if found := re.search(r"http://[\w.]+:\d+/demo/", printed):
            return found[0]
        assert not ended, f"headwater dev ended before the demo app answered:\n{printed[-3000:]}"
        assert time.monotonic() < deadline, f"no demo app within {START_DEADLINE} s:\n{printed[-3000:]}"
        time.sleep(0.1)


@pytest.fixture
def page(browser: Browser, demo_url: str) -> Browser:
    """The demo app with both devices synced for the first time."""
    browser.goto(demo_url)
    for panel in (LEFT, RIGHT):
        wait_synced(browser, panel)
    return browser


def wait_synced(page: Browser, panel: str) -> None:
    page.wait_for(part(panel, "status", "[data-state=synced]"), deadline=60)


def add_todo(page: Browser, panel: str, title: str) -> None:
    page.type(part(panel, "new-todo"), title)
    page.press("Enter")


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
