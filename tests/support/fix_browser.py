"""A headless Chromium with one page, for tests of what a person sees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.chromium import find_chromium
from tests.support.node_process import Json, NodeProcess

DEADLINE: Final = 60.0
_SLACK: Final = 10.0


class NotShown(AssertionError):
    """The page did not come to show what the test waited for; a screenshot is beside the test's files."""


@dataclass(frozen=True, slots=True)
class Box:
    """The place of an element, in pixels of the window."""

    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What the page got for a request: the path with its query, bytes of the body, and the milliseconds until its first
    byte and its end."""

    path: str
    bytes: int
    first: float
    whole: float


class Browser:
    """One page. Elements are named by CSS selectors; `deadline` is in seconds everywhere."""

    def __init__(self, process: NodeProcess, folder: Path) -> None:
        self._process = process
        self._folder = folder

    def goto(self, url: str, deadline: float = DEADLINE) -> None:
        """Open a page and wait until it has loaded."""
        self._call("goto", deadline, url=url)

    def reload(self, deadline: float = DEADLINE) -> None:
        """Load the page again, as a person does with the key F5."""
        self._call("reload", deadline)

    def click(self, selector: str, deadline: float = DEADLINE) -> None:
        """Click the first fitting element, once it can be clicked."""
        self._call("click", deadline, selector=selector)

    def type(self, selector: str, text: str, deadline: float = DEADLINE) -> None:
        """Click into a field and type."""
        self._call("type", deadline, selector=selector, text=text)

    def press(self, key: str) -> None:
        """Press one key, such as `Enter` or `Tab`."""
        self._call("press", DEADLINE, key=key)

    def keys(self, text: str) -> None:
        """Type where the focus is."""
        self._call("keys", DEADLINE, text=text)

    def chord(self, held: str, key: str) -> None:
        """Press a key while another one is held, such as `Shift`."""
        self._call("press", DEADLINE, key=key, held=held)

    def focused(self) -> str | None:
        """The `data-testid` of the element that has the focus."""
        answer = self._call("focused", DEADLINE)
        return None if answer is None else str(answer)

    def texts(self, selector: str) -> list[str]:
        """What the fitting elements show now, in the page's order."""
        return _strings(self._call("texts", DEADLINE, selector=selector))

    def attributes(self, selector: str, name: str) -> list[str]:
        """The attribute `name` of the fitting elements, in the page's order."""
        return _strings(self._call("attributes", DEADLINE, selector=selector, name=name))

    def boxes(self, selector: str) -> list[Box]:
        """Where the fitting elements are now, in the page's order."""
        answer = self._call("boxes", DEADLINE, selector=selector)
        assert isinstance(answer, list)
        return [_box(each) for each in answer]

    def findings(self) -> list[str]:
        """What axe-core has against the page: lines of impact, rule and element."""
        return _strings(self._call("accessibility", DEADLINE))

    def overflow(self) -> int:
        """How many pixels the page is wider than the window."""
        return int(str(self._call("overflow", DEADLINE)))

    def answers(self) -> list[Answer]:
        """What the page got since it was loaded, or since this was last asked."""
        answer = self._call("answers", DEADLINE)
        assert isinstance(answer, list)
        return [_answer(each) for each in answer]

    def number(self, selector: str) -> int:
        """How many elements fit now."""
        return int(str(self._call("number", DEADLINE, selector=selector)))

    def timed_click(self, selector: str, until: str, text: str = "", deadline: float = DEADLINE) -> float:
        """Click, and tell after how many milliseconds an element that fits `until` with this text in it was painted."""
        return float(str(self._call("timed", deadline, click=selector, until=until, text=text)))

    def timed_key(self, key: str, until: str, text: str = "", deadline: float = DEADLINE) -> float:
        """The same of a key, pressed where the focus is."""
        return float(str(self._call("timed", deadline, key=key, until=until, text=text)))

    def point_at(self, selector: str, text: str) -> None:
        """Move the pointer onto a text within an element."""
        self._call("point", DEADLINE, selector=selector, text=text)

    def wait_for(self, selector: str, text: str | None = None, deadline: float = DEADLINE) -> None:
        """Wait until an element fits, and shows exactly `text` if one is given. Raises `NotShown`."""
        self._wait(selector, text, False, deadline)

    def wait_gone(self, selector: str, text: str | None = None, deadline: float = DEADLINE) -> None:
        """Wait until no element fits, or none that fits shows exactly `text`. Raises `NotShown`."""
        self._wait(selector, text, True, deadline)

    def resize(self, width: int, height: int) -> None:
        """Give the page another size, in pixels."""
        self._call("resize", DEADLINE, width=width, height=height)

    def dark(self, on: bool) -> None:
        """Say that the person prefers dark colours, or light ones."""
        self._call("dark", DEADLINE, on=on)

    def screenshot(self, path: Path, *, full: bool = False) -> None:
        """Write what the page shows as PNG; `full` goes beyond the window's height."""
        self._call("screenshot", DEADLINE, path=str(path), full=full)

    def _wait(self, selector: str, text: str | None, gone: bool, deadline: float) -> None:
        answer = self._call("wait", deadline, selector=selector, text=text, gone=gone)
        assert isinstance(answer, dict)
        if answer["done"]:
            return
        picture = self._folder / "not-shown.png"
        self.screenshot(picture, full=True)
        wish = "no element" if gone else "an element"
        showing = "" if text is None else f" that shows {text!r}"
        raise NotShown(f"{wish} `{selector}`{showing} within {deadline} s; there: {answer['texts']}; see {picture}")

    def _call(self, command: str, deadline: float, **arguments: Json) -> Json:
        milliseconds = int(deadline * 1000)
        return self._process.call(command, deadline=deadline + _SLACK, timeout_ms=milliseconds, **arguments)


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A page in a Chromium whose profile and log are in `folder`; it ends with the block, and no script of the page may
    have failed by then."""
    executable = find_chromium()
    with NodeProcess("browser.mjs", folder / "browser.log") as process:
        process.call(
            "launch", deadline=60.0, executable=executable, sandbox=os.geteuid() != 0, profile=str(folder / "profile")
        )
        yield Browser(process, folder)
    lines = (folder / "browser.log").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("page error: ")] == []


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A page in a Chromium with a profile of its own, ended with the test."""
    with open_browser(tmp_path) as browser:
        yield browser


def _box(value: Json) -> Box:
    assert isinstance(value, dict)
    return Box(**{side: float(str(value[side])) for side in ("left", "right", "top", "bottom")})


def _answer(value: Json) -> Answer:
    assert isinstance(value, dict)
    figures = [float(str(value[name])) for name in ("bytes", "first", "whole")]
    return Answer(str(value["path"]), int(figures[0]), figures[1], figures[2])


def _strings(value: Json) -> list[str]:
    assert isinstance(value, list)
    return [str(each) for each in value]
