"""The studio in a real browser, on a real endpoint: what operators see of the service and change in it."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.support.fix_browser import Browser
from tests.support.fix_devices import Device, DeviceFactory
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.sync_configs import OWN_NOTES, auto_streams

pytestmark = pytest.mark.e2e

EDIT, VIEW = "a token of an editor", "a token of a viewer"
TOKENS = [EDIT, {"token": VIEW, "role": "view", "name": "Vera"}]
SCHEMA = {"notes": {"owner": "text", "body": "text"}}
HOSTILE = "<img src=x onerror=document.body.remove()>"
DESKTOP, PHONE = (1360, 900), (390, 844)


def part(name: str, more: str = "") -> str:
    """The selector of a named part of the page."""
    return f"[data-testid={name}]{more}"


@pytest.fixture
def service(source_db: SourceDb, deploy: Deploy, serve: Callable[..., Service]) -> Service:
    """An endpoint over notes of u1 and u2, for one editor and one viewer."""
    source_db.execute(
        "create table notes (id text primary key, owner text, body text);"
        " insert into notes values ('n1', 'u1', 'milk'), ('n2', 'u1', 'tea'), ('n3', 'u2', 'salt')"
    )
    return serve(deploy(OWN_NOTES).start(), api={"workers": 1, "tokens": TOKENS})


def enter(page: Browser, service: Service, token: str = EDIT, at: str = "", name: str = "") -> None:
    """Sign in, and open a page of the studio."""
    page.goto(f"{service.endpoint}/studio/")
    page.type(part("token"), token)
    if name:
        page.type(part("name"), name)
    page.press("Enter")
    page.wait_for(part("who"))
    if at:
        page.click(f"nav a[href='#/{at}']")


def connected(service: Service, device_factory: DeviceFactory, user: str) -> Device:
    device = device_factory(service.endpoint, service.token(user), SCHEMA)
    device.connect()
    device.wait_synced()
    return device


def test_signs_in_and_out(browser: Browser, service: Service) -> None:
    browser.goto(f"{service.endpoint}/studio/")
    browser.type(part("token"), "a wrong token of nobody")
    browser.press("Enter")
    browser.wait_for(part("failure", " code"), "PSYNC_S2101")

    enter(browser, service, name="Ada")
    browser.wait_for(part("who"), "Ada")
    browser.reload()
    browser.wait_for(part("who"), "Ada")

    browser.click(part("sign-out"))
    browser.wait_for(part("token"))
    browser.reload()
    browser.wait_for(part("token"))


def test_service_is_seen(browser: Browser, service: Service, source_db: SourceDb) -> None:
    enter(browser, service, VIEW, at="service")
    browser.wait_for(part("source", "[data-state=streaming]"))
    browser.wait_for(part("tables", " td:first-child"), "notes")
    browser.wait_for(part("live", " canvas"))
    browser.wait_for(part("live", " figure:nth-child(2) b"), "0")


def test_user_and_row_are_explained(browser: Browser, service: Service) -> None:
    enter(browser, service, VIEW, at="users")
    browser.type(part("client-user"), "u1")
    browser.press("Enter")
    browser.wait_for(part("user-summary", " b"), "2 rows")
    browser.type(part("row-table"), "notes")
    browser.type(part("row-id"), "n3")
    browser.press("Enter")
    browser.wait_for(part("row-answer", "[data-included=false]"))
    assert 'bucket notes["u2"]' in browser.texts(part("row-because"))[0]
    assert browser.attributes(part("row-answer", " li a"), "href") == ["#/rules?stream=notes"]
    browser.press("Backspace")
    browser.press("1")
    browser.press("Enter")
    browser.wait_for(part("row-answer", "[data-included=true]"))
    browser.press("Backspace")
    browser.press("3")
    browser.press("Enter")
    browser.wait_for(part("row-answer", "[data-included=false]"))
    browser.click(part("row-answer", " li a"))
    browser.wait_for(".cm-activeLine", "notes:")
    browser.wait_for(part("compare", ":enabled"))  # for the same user


def test_editor_ends_a_stream(browser: Browser, service: Service, device_factory: DeviceFactory) -> None:
    device = connected(service, device_factory, "u1")
    enter(browser, service, at="users")
    browser.click(part("revoke-user"))
    browser.click(part("confirm-yes"))
    browser.wait_for(part("revocations", " code"), "u1")
    device.wait_status(connected=False)
    browser.wait_gone(part("devices", " tbody tr"))


def write(page: Browser, line: int, text: str) -> None:
    """Put a text in place of the query in a line of the editor, after which an empty line comes."""
    page.click(f".cm-line:nth-child({line})")
    page.chord("Alt", "l")  # the whole line, though it be wrapped
    page.keys(f"    {text}")
    page.press("Escape")  # what completes


def test_wrong_rule_is_mended_deployed_and_rolled_back(
    browser: Browser, service: Service, device_factory: DeviceFactory
) -> None:
    device = connected(service, device_factory, "u1")
    enter(browser, service, name="Ada")
    browser.wait_for(part("findings", "[data-valid=true]"))
    assert browser.attributes(part("deploy"), "disabled") == [""], "nothing is changed yet"
    write(browser, 5, "query: SELECT * FROM note WHERE owner = request.user_id() OR body = 'salt'")
    browser.wait_for(".cm-lintRange-error", "request.user_id()")
    assert browser.attributes(part("deploy"), "disabled") == [""]
    browser.click(part("fix"))
    browser.wait_for(".cm-lintRange-error", "note")
    browser.chord("Control", ".")
    browser.wait_for(part("findings", "[data-valid=true]"))
    mended = "query: SELECT * FROM notes WHERE owner = auth.user_id() OR body = 'salt'"
    browser.wait_for(".cm-line:nth-child(5)", mended)

    browser.type(part("client-user"), "u1")
    browser.press("Enter")
    browser.wait_for(part("gained-rows"), "1")
    assert browser.texts(part("compared", " tbody td")) == ["notes", "2", "3", "1", "0", "0"]
    browser.click(part("gained-rows"))
    browser.wait_for(part("compared-rows", " td:first-child"), "n3")
    browser.press("Escape")
    browser.click(part("client-user"))
    browser.press("Backspace")
    browser.press("Backspace")
    browser.keys("u2")
    browser.press("Enter")
    browser.wait_for(part("comparison", " h3"), "What u2 gets")
    assert browser.texts(part("compared", " tbody td"))[:6] == ["notes", "1", "1", "0", "0", "0"]

    browser.click(part("deploy"))
    browser.wait_for(part("difference"))
    browser.wait_for(part("cost", " dd"))
    assert "1 connected device" in browser.texts(part("cost"))[0]
    browser.click(part("ask-balances"))
    browser.wait_for(part("balances", " td:first-child"), "u1")
    assert browser.texts(part("balances", " td")) == ["u1", "1", "none", "0"]
    browser.type(part("deploy-note"), "salt for all")
    browser.click(part("deploy-now"))
    device.wait_for("select id from notes order by id", [{"id": "n1"}, {"id": "n2"}, {"id": "n3"}])
    browser.wait_gone(part("edited"))
    browser.wait_for(".cm-line:nth-child(5)", mended)

    browser.click(part("history"))
    browser.wait_for(part("roll-back"))
    assert "salt for all" in browser.texts(part("history-dialog", " tbody tr:first-child"))[0]
    browser.click(part("roll-back"))
    browser.click(part("confirm-yes"))
    device.wait_for("select id from notes order by id", [{"id": "n1"}, {"id": "n2"}])
    browser.click("nav a[href='#/service']")
    browser.wait_for(part("changes", " td:nth-child(2)"), "Ada")


def test_case_is_kept_and_run_before_a_deploy(browser: Browser, service: Service) -> None:
    enter(browser, service)
    browser.wait_for(part("findings", "[data-valid=true]"))
    browser.type(part("client-user"), "u1")
    browser.click(part("keep-case"))
    browser.type(part("case-name"), "the cook")
    browser.type(part("case-expect"), '{"notes": {"rows": 2, "has": ["n1"]}}')
    browser.click(part("case-keep"))
    browser.wait_for(part("cases", " .case button.link"), "the cook")
    browser.click(part("run-cases"))
    browser.wait_for(part("case-results", " [data-passed=true]"))
    write(browser, 5, "query: SELECT * FROM notes WHERE owner = 'u2'")
    browser.click(part("deploy", ":enabled"))
    browser.wait_for(part("deploy-dialog", " [data-passed=false]"))


def test_deploy_of_another_is_not_overwritten(browser: Browser, service: Service) -> None:
    enter(browser, service)
    browser.wait_for(part("findings", "[data-valid=true]"))
    write(browser, 5, "query: SELECT * FROM notes WHERE owner = 'u2'")
    browser.click(part("deploy", ":enabled"))
    browser.wait_for(part("cost"))
    httpx.post(
        f"{service.endpoint}/api/headwater/v1/deploy",
        json={"content": auto_streams(notes="SELECT id, body FROM notes")},
        headers={"authorization": f"Token {EDIT}"},
    ).raise_for_status()
    browser.click(part("deploy-now"))
    browser.wait_for(part("deploy-dialog", " [data-testid=failure] code"), "HW_6211")
    browser.press("Escape")
    browser.wait_for(part("behind"))


def test_draft_outlives_reload_and_session(browser: Browser, service: Service) -> None:
    enter(browser, service)
    browser.wait_for(part("findings", "[data-valid=true]"))
    write(browser, 5, "query: SELECT 'my draft'")
    browser.wait_for(part("edited"))
    browser.reload()
    browser.wait_for(".cm-line:nth-child(5)", "query: SELECT 'my draft'")
    browser.click(part("sign-out"))
    enter(browser, service)
    browser.wait_for(".cm-line:nth-child(5)", "query: SELECT 'my draft'")
    browser.click(part("throw-away"))
    browser.wait_gone(part("edited"))
    browser.wait_gone(".cm-line:nth-child(5)", "query: SELECT 'my draft'")


def test_completes_and_explains(browser: Browser, service: Service) -> None:
    enter(browser, service)
    browser.wait_for(part("findings", "[data-valid=true]"))
    write(browser, 5, "query: SELECT * FROM notes WHERE own")
    browser.keys("e")
    browser.wait_for(".cm-completionLabel", "owner")
    browser.click("li[role=option]")
    browser.keys(" = auth.u")
    browser.wait_for(".cm-completionLabel", "auth.user_id()")
    browser.click("li[role=option]")
    browser.wait_for(".cm-line:nth-child(5)", "query: SELECT * FROM notes WHERE owner = auth.user_id()")


def test_viewer_sees_nothing_that_changes(browser: Browser, service: Service, device_factory: DeviceFactory) -> None:
    connected(service, device_factory, "u1")
    enter(browser, service, VIEW, at="users")
    browser.wait_for(part("devices", " tbody tr"))
    assert browser.texts(part("devices", " button")) == ["u1"]
    assert browser.texts(part("who", " .role")) == ["reads only"]
    browser.click("nav a[href='#/rules']")
    browser.wait_for(part("findings", "[data-valid=true]"))
    write(browser, 5, "query: SELECT * FROM notes")
    browser.wait_for(part("edited"))
    browser.click(part("history"))
    browser.wait_for(part("history-dialog", " tbody tr"))
    assert browser.texts(f"{part('deploy')}, {part('roll-back')}, {part('keep-case')}") == []


def test_texts_of_the_database_stay_texts(
    browser: Browser, deploy: Deploy, serve: Callable[..., Service], source_db: SourceDb, device_factory: DeviceFactory
) -> None:
    quoted = f'"{HOSTILE}"'
    source_db.execute(
        f"create table {quoted} (id text primary key, {quoted} text);"
        f" insert into {quoted} values ('{HOSTILE}', '{HOSTILE}')"
    )
    yaml = f"""
config: {{edition: 3}}
streams:
  notes:
    auto_subscribe: true
    query: 'SELECT * FROM {quoted} WHERE {quoted} = auth.user_id()'
"""
    service = serve(deploy(yaml).start(), api={"workers": 1, "tokens": TOKENS})
    device_factory(service.endpoint, service.token(HOSTILE), SCHEMA).connect()
    enter(browser, service, name=HOSTILE)
    browser.wait_for(part("who"), HOSTILE)
    browser.wait_for(part("findings", "[data-valid=true]"))
    write(browser, 6, f"query: 'SELECT * FROM \"{HOSTILE[:-1]}'")
    browser.wait_for(part("findings", "[data-valid=false]"))
    write(browser, 6, f"query: 'SELECT * FROM \"{HOSTILE}\"'")
    browser.wait_for(part("findings", "[data-valid=true]"))
    browser.type(part("client-user"), HOSTILE)
    browser.click(part("compare", ":enabled"))
    browser.wait_for(part("compared", " code"), HOSTILE)
    browser.click("nav a[href='#/service']")
    browser.wait_for(part("tables", " td:first-child"), HOSTILE)
    browser.click("nav a[href='#/users']")
    browser.wait_for(part("devices", " tbody button.link"), HOSTILE)
    browser.click(part("client-user"))  # which still has it
    browser.press("Enter")
    browser.wait_for(part("user-summary", " b"), "1 row")
    browser.type(part("row-table"), HOSTILE)
    browser.type(part("row-id"), HOSTILE)
    browser.press("Enter")
    browser.wait_for(part("row-answer", "[data-included=true]"))
    assert browser.texts("img") == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(browser: Browser, service: Service, device_factory: DeviceFactory, dark: bool) -> None:
    connected(service, device_factory, "u1")
    browser.dark(dark)
    browser.goto(f"{service.endpoint}/studio/")
    browser.wait_for(part("token"))
    found = {"sign in": browser.findings()}
    enter(browser, service, at="service")
    browser.wait_for(part("live", " canvas"))
    browser.wait_for(part("tables", " tbody tr"))
    found["service"] = browser.findings()
    browser.click("nav a[href='#/users']")
    browser.wait_for(part("devices", " tbody tr"))
    browser.type(part("client-user"), "u1")
    browser.press("Enter")
    browser.wait_for(part("user-summary"))
    found["users"] = browser.findings()
    browser.click("nav a[href='#/rules']")
    browser.wait_for(part("findings", "[data-valid=true]"))
    write(browser, 5, "query: SELECT * FROM note")
    browser.wait_for(".cm-lintRange-error")
    found["rules"] = browser.findings()
    browser.click(part("fix"))
    browser.click(part("deploy", ":enabled"))
    browser.wait_for(part("difference"))
    found["deploy"] = browser.findings()
    browser.press("Escape")
    browser.click(part("history"))
    browser.click(part("history-dialog", " tbody button"))
    browser.wait_for(part("difference"))
    found["history"] = browser.findings()
    assert {name: findings for name, findings in found.items() if findings} == {}


def test_phone_does_not_scroll_sideways(browser: Browser, service: Service, device_factory: DeviceFactory) -> None:
    connected(service, device_factory, "u1")
    browser.resize(*PHONE)
    enter(browser, service, at="service")
    browser.wait_for(part("tables", " tbody tr"))
    assert browser.overflow() <= 0
    browser.click("nav a[href='#/users']")
    browser.wait_for(part("devices", " tbody tr"))
    browser.type(part("client-user"), "u1")
    browser.press("Enter")
    browser.wait_for(part("user-summary"))
    assert browser.overflow() <= 0
    browser.click("nav a[href='#/rules']")
    browser.wait_for(part("findings", "[data-valid=true]"))
    assert browser.overflow() <= 0
