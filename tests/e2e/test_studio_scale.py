"""The studio over many tables, buckets and devices: each page asks for little and shows little at a time, and all of it
can be come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.e2e.test_studio import EDIT, TOKENS, enter, part
from tests.support.fix_browser import Browser
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.held_streams import held_streams
from tests.support.sync_configs import auto_streams

pytestmark = pytest.mark.e2e

TABLES, LISTS, DEVICES, REVOKED = 120, 200, 120, 60
PAGE = 50
MOST_BYTES = 100_000
"""Of any answer that a page asks for by itself."""
MOST_ELEMENTS = 4_000
OURS = "/api/headwater/v1"


@pytest.fixture
def service(source_db: SourceDb, deploy: Deploy, serve: Callable[..., Service]) -> Iterator[Service]:
    """Many of everything. The user `all` has each of the lists, which are buckets of their own."""
    tables = [f"table_{number:03}" for number in range(TABLES)]
    source_db.execute(
        "".join(f"create table {name} (id text primary key, owner text);" for name in tables)
        + "create table members (list text, member text, primary key (list, member));"
        "create table items (id text primary key, list text);"
        f" insert into members select 'l' || i, 'all' from generate_series(1, {LISTS}) i;"
        f" insert into items select 'i' || i, 'l' || i from generate_series(1, {LISTS}) i;"
    )
    streams = {name: f"SELECT * FROM {name} WHERE owner = auth.user_id()" for name in tables}
    lists = "SELECT * FROM items WHERE list IN (SELECT list FROM members WHERE member = auth.user_id())"
    deployed = deploy(auto_streams(items=lists, **streams)).start()
    service = serve(deployed, api={"workers": 1, "tokens": TOKENS})
    headers = {"authorization": f"Token {EDIT}"}
    with httpx.Client(base_url=f"{service.endpoint}{OURS}", headers=headers) as operator:
        for number in range(REVOKED):
            operator.post("/revoke", json={"kind": "jti", "value": f"token {number}"}).raise_for_status()
    with held_streams(service.port, [f"user {number:03}" for number in range(DEVICES)]):
        yield service


def rows(page: Browser, section: str) -> int:
    return page.number(part(section, " tbody tr:not(.below)"))


def is_bounded(page: Browser) -> bool:
    """Whether what the page has asked for and shows is little."""
    assert [each for each in page.answers() if "/api/" in each.path and each.bytes > MOST_BYTES] == []
    assert page.number("*") < MOST_ELEMENTS
    return True


def test_tables_are_paged_and_found(browser: Browser, service: Service) -> None:
    enter(browser, service, at="service")
    browser.wait_for(part("tables", " .pager span"), f"1 to 50 of {TABLES + 2}")
    browser.wait_for(part("buckets", " tbody tr"))
    assert rows(browser, "tables") == PAGE
    assert is_bounded(browser)
    browser.click(part("tables", " [data-testid=next]"))
    browser.wait_for(part("tables", " td:first-child"), "table_060")
    browser.type(part("tables", " [data-testid=find]"), "table_11")
    browser.wait_for(part("tables", " td:first-child"), "table_119")
    assert rows(browser, "tables") == 10
    browser.wait_for(part("changes", " .pager span"), "1 to 50")
    browser.click(part("changes", " [data-testid=next]"))
    browser.wait_for(part("changes", " .pager span"), f"51 to {REVOKED}")
    assert browser.number(part("changes", " [data-testid=next]:enabled")) == 0


def test_devices_are_paged_and_found_by_the_service(browser: Browser, service: Service) -> None:
    enter(browser, service, at="users")
    browser.wait_for(part("devices", " .pager span"), f"1 to 50 of {DEVICES}")
    browser.wait_for(part("revocations", " .pager span"), f"1 to 50 of {REVOKED}")
    assert (rows(browser, "devices"), rows(browser, "revocations")) == (PAGE, PAGE)
    assert browser.number("datalist option") <= 2 * 20
    assert is_bounded(browser)
    browser.click(part("devices", " [data-testid=next]"))
    browser.wait_for(part("devices", " tbody button.link"), "user 099")
    asked = [each.path for each in browser.answers()]
    assert len([path for path in asked if "offset=50" in path]) == 1
    browser.type(part("devices", " [data-testid=find]"), "USER 077")
    browser.wait_gone(part("devices", " .pager"))
    assert browser.texts(part("devices", " tbody button.link")) == ["user 077"]
    assert len([each for each in browser.answers() if "find=U" in each.path]) < len("USER 077"), "not for each key"
    browser.type(part("revocations", " [data-testid=next]"), "")
    browser.wait_for(part("revocations", " td:nth-child(2)"), "token 0")
    browser.type(part("client-user"), "user 11")
    browser.wait_for("datalist option[value='user 119']")
    browser.wait_gone("datalist option[value='user 000']")
    assert browser.number("datalist option[value^=user]") == 10


def test_buckets_of_a_user_are_paged_and_found(browser: Browser, service: Service) -> None:
    enter(browser, service, at="users")
    browser.type(part("client-user"), "all")
    browser.press("Enter")
    browser.wait_for(part("user-answer", " .pager span"), f"1 to 50 of {LISTS + TABLES}")
    assert browser.number(part("user-answer", " tbody tr")) <= 3 * PAGE
    assert is_bounded(browser)


def test_rules_with_many_findings(browser: Browser, service: Service) -> None:
    """A text that is wrong in each stream."""
    enter(browser, service)
    browser.wait_for(part("findings", "[data-valid=true]"))
    assert is_bounded(browser)
    browser.click(".cm-line:nth-child(3)")
    browser.chord("Control", "a")
    browser.keys("config: {edition: 3}\nstreams:\n")
    wrong = [f"  s{number}: {{query: SELECT * FROM no_{number}}}\n" for number in range(60)]
    browser.press("Home")
    browser.keys("".join(line.strip() + "\n" for line in wrong))
    browser.wait_for(part("findings", "[data-valid=false]"))
    browser.wait_for(part("findings", " [data-testid=more]"))
    assert browser.number(part("findings", " li")) == 20
    assert is_bounded(browser)
