"""The studio over many tables, buckets and devices: until what somebody does is painted, and the service's time for the
calls behind it."""

from __future__ import annotations

import resource
import tempfile
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench import report
from tests.bench.service import BenchService, bench_service
from tests.support.fix_browser import Answer, Browser, open_browser
from tests.support.held_streams import held_streams
from tests.support.sync_configs import auto_streams

BUDGET: Final = 100.0
"""Milliseconds from the input to the frame that shows what it brought."""

TIMES: Final = 5
_TOKEN: Final = "a token of the bench"
_SPARE_FILES: Final = 500
_ALL: Final = "all"
"""The user that has every bucket."""


def run(tables: int, lists: int, devices: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, devices + _SPARE_FILES), hard), hard))
    with bench_service(fsync="off") as service, ExitStack() as held, tempfile.TemporaryDirectory() as folder:
        _serve(service, tables, lists, devices)
        connected = _connect(service, devices, held)
        report.heading(f"studio with {connected:,} devices, {lists:,} buckets of a user, {tables:,} tables")
        if connected < devices:
            report.line("devices that the service held", connected, "of", "asked for", devices)
        with open_browser(Path(folder)) as page:
            page.goto(f"http://127.0.0.1:{service.port}/studio/")
            page.type("[data-testid=token]", _TOKEN)
            page.press("Enter")
            page.wait_for(".cm-line")
            answers = page.answers()
            for action in _actions():
                answers += _measure(page, action)
        _tell(answers)


def _serve(service: BenchService, tables: int, lists: int, devices: int) -> None:
    names = [f"table_{number:03}" for number in range(tables)]
    service.execute(
        *(
            f"create table {name} (id text primary key, owner text, title text, n bigint, at timestamptz)"
            for name in names
        ),
        "create table members (list text, member text, primary key (member, list))",
        "create table items (id text primary key, list text)",
        f"insert into members select 'l' || i, '{_ALL}' from generate_series(1, {lists}) i",
        f"insert into items select 'i' || i, 'l' || i from generate_series(1, {lists}) i",
        "create publication headwater for all tables",
    )
    streams = {name: f"SELECT * FROM {name} WHERE owner = auth.user_id()" for name in names}
    streams["items"] = "SELECT * FROM items WHERE list IN (SELECT list FROM members WHERE member = auth.user_id())"
    most = lists + tables
    limits = {
        "max_concurrent_connections": devices + _SPARE_FILES,
        "max_buckets_per_connection": most,
        "max_parameter_query_results": most,
    }
    service.serve(auto_streams(**streams), api={"workers": 1, "tokens": [_TOKEN], "parameters": limits})
    service.wait_ready()


def _connect(service: BenchService, devices: int, held: ExitStack) -> int:
    """Open so many streams, or as many as the service holds."""
    for number in range(devices):
        try:
            held.enter_context(held_streams(service.port, [f"user {number:05}"]))
        except (OSError, AssertionError):
            return number
    return devices


@dataclass(frozen=True, slots=True)
class _Action:
    """What is done: a click or a key, after `before` has brought the page to where that can be. It is over once an
    element that fits `until` has the text."""

    name: str
    until: str
    text: str = ""
    click: str = ""
    key: str = ""
    before: Callable[[Browser], None] = lambda page: None


def _part(name: str, more: str = "") -> str:
    return f"[data-testid={name}]{more}"


def _link(name: str) -> str:
    return f"nav a[href='#/{name}']"


def _at(name: str, shown: str) -> Callable[[Browser], None]:
    """Opens a page and waits until it shows that."""

    def go(page: Browser) -> None:
        page.click(_link("service" if name != "service" else "users"))
        page.wait_for(_part("tables", " tbody tr") if name != "service" else _part("devices", " tbody tr"))
        page.click(_link(name))
        page.wait_for(shown)

    return go


def _user_of_all(page: Browser) -> None:
    _at("users", _part("devices", " tbody tr"))(page)
    page.type(_part("client-user"), _ALL)
    page.press("Enter")
    page.wait_for(_part("user-answer", " .pager"))


def _in_editor(page: Browser) -> None:
    _at("rules", _part("findings", "[data-valid]"))(page)
    page.click(".cm-line:nth-child(3)")


def _actions() -> list[_Action]:
    devices, service, rules = _part("devices", " tbody tr"), _part("tables", " tbody tr"), ".cm-line"
    at_devices, at_service = _at("users", devices), _at("service", service)
    page_two = "51 to "
    return [
        _Action("open Users and rows", devices, click=_link("users"), before=at_service),
        _Action("open Service", _part("service-summary"), click=_link("service"), before=at_devices),
        _Action("open Rules", rules, click=_link("rules"), before=at_service),
        _Action("next page of devices", _part("devices", " .pager"), page_two, _part("devices", " [data-testid=next]"),
                before=at_devices),
        _Action("open a user", _part("user-summary"), click=_part("devices", " tbody button.link"), before=at_devices),
        _Action("next page of a user's buckets", _part("user-answer", " .pager:last-of-type"), page_two,
                _part("user-answer", " .pager:last-of-type [data-testid=next]"), before=_user_of_all),
        _Action("next page of tables", _part("tables", " .pager"), page_two, _part("tables", " [data-testid=next]"),
                before=at_service),
        _Action("a character in the editor", ".cm-activeLine", "x", key="x", before=_in_editor),
        _Action("open History", _part("history-dialog"), click=_part("history"), before=_at("rules", rules)),
    ]  # fmt: skip


def _measure(page: Browser, action: _Action) -> list[Answer]:
    taken, answers = [], []
    for _ in range(TIMES):
        action.before(page)
        answers += page.answers()
        if action.click:
            taken.append(page.timed_click(action.click, action.until, action.text))
        else:
            taken.append(page.timed_key(action.key, action.until, action.text))
        answers += page.answers()
        page.press("Escape")
        page.reload()
    report.line(action.name, report.percentile(taken, 0.5), "ms", "budget", BUDGET)
    report.line("  the longest", max(taken), "ms")
    return answers


def _tell(answers: list[Answer]) -> None:
    report.heading("calls of the pages: until the first byte, the middle and the longest, and the largest answer")
    by_path = defaultdict[str, list[Answer]](list)
    for answer in answers:
        if "/api/" in answer.path:
            by_path[answer.path.partition("?")[0]].append(answer)
    for path, found in sorted(by_path.items()):
        times = [answer.first for answer in found]
        report.line(path, report.percentile(times, 0.5), "ms")
        report.line("  the longest", max(times), "ms")
        report.line("  the largest answer", max(answer.bytes for answer in found) / 1000, "kB")
