"""The studio over HTTP: signing in and out, what a session may do, and the files of the page. Most of it is what
strangers and other pages try."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from headwater.api.admin.route import AdminSettings
from headwater.api.studio import routes as studio
from headwater.api.studio import sessions
from headwater.api.studio.sessions import Operators
from headwater.api.studio.tokens import AdminToken, Role
from tests.support.fix_admin import NOWHERE, OPENAPI, OPERATOR, TOKEN, AdminEndpoint, running_admin
from tests.support.plain_http import plain_http
from tests.support.ruled_configs import SERVED
from tests.support.ruled_store import RuledStore

VIEWER = AdminToken("the token of a viewer in tests", Role.VIEW, "Vera")
VALIDATE, DEPLOY = "/api/headwater/v1/validate", "/api/headwater/v1/deploy"


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A built page, and files that are no part of it."""
    dist = tmp_path / "dist"
    (dist / "assets").mkdir(parents=True)
    (dist / "studio.html").write_text('<meta property="csp-nonce" nonce="HEADWATER_NONCE"><title>Studio</title>')
    (dist / "index.html").write_text("the demo")
    (dist / "assets" / "studio-1a2b.js").write_text("export {}")
    (tmp_path / "secret.txt").write_text("secret")
    (dist / "assets" / "out").symlink_to(tmp_path / "secret.txt")
    monkeypatch.setattr(studio, "find_page", lambda: dist)
    return dist


@pytest.fixture
def admin(ruled: RuledStore, built: Path) -> Iterator[AdminEndpoint]:
    ruled.serve(SERVED)
    with running_admin(AdminSettings((OPERATOR, VIEWER), ruled.store.address, (NOWHERE,))) as endpoint:
        yield endpoint


@pytest.fixture
def page(admin: AdminEndpoint) -> Iterator[httpx.Client]:
    """A browser, which has no token."""
    with plain_http(admin.port) as http:
        yield http


def sign_in(page: httpx.Client, token: str = TOKEN, **more: Any) -> dict[str, Any]:
    """Sign in. The header with the csrf is sent from now on."""
    response = page.post("/studio/session", json={"token": token, **more})
    assert response.status_code == 200, response.text
    session: dict[str, Any] = response.json()
    page.headers["x-headwater-csrf"] = session["csrf"]
    return session


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_session(page: httpx.Client) -> None:
    session = sign_in(page, name="Ada")
    assert (session["role"], session["name"]) == ("edit", "Ada")
    assert page.get("/studio/session").json() == session
    assert page.get("/api/admin/v1/status").status_code == 200
    assert page.post(DEPLOY, json={"content": SERVED}).status_code == 200
    assert page.delete("/studio/session").status_code == 204
    assert not page.cookies
    assert code(page.get("/studio/session")) == (401, "PSYNC_S2101")
    assert code(page.get("/api/admin/v1/status")) == (401, "PSYNC_S2101")


def test_cookie_is_out_of_reach_of_scripts_and_other_sites(page: httpx.Client) -> None:
    sent = page.post("/studio/session", json={"token": TOKEN}).headers["set-cookie"].lower()
    assert {"httponly", "samesite=strict", "path=/", "max-age=43200"} <= {each.strip() for each in sent.split(";")}
    assert "secure" not in sent
    by_tls = {"host": "ours.example", "origin": "https://ours.example"}
    sent = page.post("/studio/session", json={"token": TOKEN}, headers=by_tls).headers["set-cookie"]
    assert "secure" in sent.lower(), "a browser came by TLS, whatever the proxy says"


def test_stranger_gets_the_page_and_nothing_else(admin: AdminEndpoint, page: httpx.Client) -> None:
    assert page.get("/studio/").status_code == 200
    for path, operations in admin.http.get(OPENAPI).json()["paths"].items():
        for method in operations:
            response = page.request(method, path.replace("{id}", "1"), headers={"cookie": "headwater_studio=a.b"})
            assert code(response) == (401, "PSYNC_S2101"), path


@pytest.mark.parametrize(
    "headers",
    [
        {"x-headwater-csrf": ""},
        {"x-headwater-csrf": "wrong"},
        {"x-headwater-csrf": "\u00e9".encode()},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://[::1"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
def test_change_by_another_page(page: httpx.Client, ruled: RuledStore, headers: dict[str, str]) -> None:
    sign_in(page)
    changed = SERVED.replace("SELECT", "select", 1)
    response = page.post(DEPLOY, json={"content": changed}, headers=headers)
    assert code(response) == (403, "HW_6207")
    assert len(ruled.store.versions()) == 1
    response = page.delete("/studio/session", headers=headers)
    assert code(response) == (403, "HW_6207")


def test_other_page_reads_nothing(page: httpx.Client) -> None:
    sign_in(page)
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "same-site"}):
        for path in ("/api/admin/v1/status", "/studio/session"):
            response = page.get(path, headers=headers)
            assert code(response) == (403, "HW_6207")
            assert "access-control-allow-credentials" not in response.headers
    for method in ("GET", "POST"):
        ask = {"origin": "http://evil.example", "access-control-request-method": method}
        assert "access-control-allow-credentials" not in page.options("/studio/session", headers=ask).headers


def test_own_page_is_no_other(admin: AdminEndpoint, page: httpx.Client) -> None:
    own = {"origin": f"http://127.0.0.1:{admin.port}", "sec-fetch-site": "same-origin"}
    page.headers.update(own)
    sign_in(page)
    assert page.post(DEPLOY, json={"content": SERVED}).status_code == 200
    proxied = {"host": "Studio.example", "origin": "https://studio.example"}
    assert page.post(DEPLOY, json={"content": SERVED}, headers=proxied).status_code == 200


def test_another_page_signs_nobody_in(page: httpx.Client) -> None:
    body = {"token": TOKEN}
    assert code(page.post("/studio/session", json=body, headers={"origin": "http://evil.example"})) == (403, "HW_6207")
    assert code(page.post("/studio/session", data=body)) == (415, "PSYNC_S2004")
    assert not page.cookies


def test_cookie_of_a_removed_token(page: httpx.Client) -> None:
    gone = AdminToken("a token of another config", Role.EDIT)
    page.cookies.set("headwater_studio", Operators((gone,)).sign_in(gone))
    assert code(page.get("/api/admin/v1/status")) == (401, "PSYNC_S2101")


def test_expired_cookie(page: httpx.Client) -> None:
    page.cookies.set("headwater_studio", Operators((OPERATOR,), lambda: 1e9).sign_in(OPERATOR))
    assert code(page.get("/api/admin/v1/status")) == (401, "PSYNC_S2101")
    assert page.delete("/studio/session").status_code == 204


def test_events_end_with_the_session(page: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSION_SECONDS", 2)
    sign_in(page)
    with page.stream("GET", "/api/headwater/v1/progress") as events:
        assert events.status_code == 200
        assert "data: " in "\n".join(events.iter_lines()), "and the lines have an end"
    assert code(page.get("/api/headwater/v1/progress")) == (401, "PSYNC_S2101")


def test_wrong_token_beside_a_session(page: httpx.Client) -> None:
    sign_in(page)
    assert page.get("/api/admin/v1/status", headers={"authorization": "Token wrong"}).status_code == 401


def test_csrf_of_another_session(admin: AdminEndpoint, page: httpx.Client) -> None:
    with plain_http(admin.port) as other:
        theirs = sign_in(other, VIEWER.text)["csrf"]
    sign_in(page)
    assert code(page.post(DEPLOY, json={"content": SERVED}, headers={"x-headwater-csrf": theirs})) == (403, "HW_6207")


READING = {
    "/api/admin/v1/diagnostics",
    "/api/admin/v1/schema",
    "/api/admin/v1/validate",
    "/api/headwater/v1/cases/run",
    "/api/headwater/v1/compare",
    "/api/headwater/v1/cost",
    "/api/headwater/v1/diff",
    "/api/headwater/v1/explain/row",
    "/api/headwater/v1/explain/user",
    "/api/headwater/v1/preview",
    "/api/headwater/v1/validate",
    "/api/sync-rules/v1/validate",
}
"""The paths that a viewer may send something to. Whoever adds one makes sure that it changes nothing."""


def test_viewer_changes_nothing(admin: AdminEndpoint, page: httpx.Client, ruled: RuledStore) -> None:
    assert sign_in(page, VIEWER.text, name="not this")["name"] == "Vera"
    with plain_http(admin.port, {"authorization": f"Bearer {VIEWER.text}"}) as command:
        paths = admin.http.get(OPENAPI).json()["paths"]
        for path, by in [(path, by) for path in paths for by in (page, command)]:
            for method in paths[path]:
                response = by.request(method, path.replace("{id}", "1"), content=b"{") if method == "post" else None
                if response is not None and path in READING:
                    assert code(response) in {(400, "HW_6201"), (200, "")}, path
                elif response is not None:
                    assert code(response) == (403, "HW_6206"), path
        for path in (
            "/api/headwater/v1/unheard-of",
            f"{VALIDATE}/",
            "/api/headwater/v1/versions",
            "/api/x/../validate",
        ):
            for method in ("POST", "PUT", "PATCH", "DELETE"):
                assert code(command.request(method, path)) == (403, "HW_6206"), path
        assert command.get("/api/headwater/v1/versions").status_code == 200
    assert len(ruled.store.versions()) == 1


def test_sign_ins_are_limited(page: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studio, "MOST_FAILED", 3)
    for _ in range(3):
        assert code(page.post("/studio/session", json={"token": "wrong"})) == (401, "PSYNC_S2101")
    refused = page.post("/studio/session", json={"token": TOKEN})
    assert code(refused) == (429, "HW_6208")
    assert refused.headers["retry-after"] == "60"


def test_sign_ins_that_are_sent_at_once_are_limited(
    admin: AdminEndpoint, page: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studio, "MOST_FAILED", 3)
    body = b'{"token": "wrong"}'
    head = f"POST /studio/session HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(socket.create_connection(("127.0.0.1", admin.port), timeout=60)) for _ in range(12)
        ]
        for stranger in strangers:
            stranger.sendall(head.encode())
        page.get("/studio/session")  # so that all these have begun
        for stranger in strangers:
            stranger.sendall(body)
        told = [stranger.recv(100)[9:12] for stranger in strangers]
    assert sorted(told) == [b"401"] * 3 + [b"429"] * 9


def test_strangers_keep_no_operator_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studio, "MOST_FAILED_IN_ALL", 5)
    failed = studio.FailedSignIns()
    for number in range(5):
        failed.check(f"stranger {number}")
        failed.note(f"stranger {number}")
    failed.check("operator")
    failed.note("operator")
    for address in ("operator", "stranger 0"):
        with pytest.raises(studio.TooManySignInsError):
            failed.check(address)


def test_nobody_takes_the_name_of_another_token(page: httpx.Client) -> None:
    for name in ("Vera", " vERA "):
        response = page.post("/studio/session", json={"token": TOKEN, "name": name})
        assert code(response) == (400, "HW_6201")
    assert not page.cookies
    assert sign_in(page, VIEWER.text, name="Vera")["name"] == "Vera"


def test_sign_ins_that_work_are_not_limited(page: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studio, "MOST_FAILED", 2)
    for _ in range(5):
        sign_in(page)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"token": 1}', 400),
        (b'{"token": "x", "role": "edit"}', 400),
        (b'{"token": "\\ud800"}', 400),
        (b"\xff", 400),
        (b'{"token": ""}', 401),
        (b'{"token": "' + b"x" * 5000 + b'"}', 400),
        (b'{"token": "' + b"x" * 20_000 + b'"}', 413),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_odd_sign_in(page: httpx.Client, body: bytes, status: int) -> None:
    response = page.post("/studio/session", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, bool(page.cookies)) == (status, False)


@pytest.mark.parametrize("name", ["a\r\nset-cookie: x=1", "a\nb", "\0", "\u202eevil", "n" * 101])
def test_name_injects_nothing(page: httpx.Client, name: str) -> None:
    response = page.post("/studio/session", json={"token": TOKEN, "name": name})
    assert code(response) == (400, "HW_6201")
    assert not page.cookies


def test_any_printable_name(page: httpx.Client) -> None:
    name = '; Path=/x, "Ada" <b>Üß 日本</b>'
    assert sign_in(page, name=name)["name"] == name
    assert page.get("/studio/session").json()["name"] == name


def test_huge_body_is_not_read(admin: AdminEndpoint) -> None:
    with socket.create_connection(("127.0.0.1", admin.port), timeout=60) as stranger:
        head = "POST /studio/session HTTP/1.1\r\nhost: x\r\ncontent-length: 10000000000\r\n\r\n"
        stranger.sendall(head.encode())
        assert stranger.recv(100).startswith(b"HTTP/1.1 413")


def test_page(page: httpx.Client) -> None:
    assert page.get("/studio").headers["location"] == "studio/"
    first, second = page.get("/studio/"), page.get("/studio/")
    assert (first.status_code, first.headers["content-type"]) == (200, "text/html; charset=utf-8")
    nonces = []
    for response in (first, second):
        policy = response.headers["content-security-policy"]
        (nonce,) = re.findall(r"'nonce-([\w-]{20,})'", policy)
        assert f'nonce="{nonce}"' in response.text
        assert "unsafe" not in policy
        assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy.split("; "))
        nonces.append(nonce)
    assert nonces[0] != nonces[1]
    script = page.get("/studio/assets/studio-1a2b.js")
    assert script.headers["content-type"] == "text/javascript"
    assert "immutable" in script.headers["cache-control"]
    for response in (first, script, page.post("/studio/session", json={"token": TOKEN})):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["x-frame-options"] == "DENY"
        assert response.headers["cross-origin-resource-policy"] == "same-origin"
        assert response.headers["referrer-policy"] == "no-referrer"
    assert {first.headers["cache-control"], page.get("/studio/session").headers["cache-control"]} == {"no-store"}
    assert page.get("/api/admin/v1/status").headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/studio/assets/../index.html",
        "/studio/assets/%2e%2e/index.html",
        "/studio/assets/..%2f..%2fsecret.txt",
        "/studio/assets/..%5c..%5csecret.txt",
        "/studio/assets//etc/passwd",
        "/studio/assets/%2fetc%2fpasswd",
        "/studio/assets/out",
        "/studio/assets/%00",
        "/studio/assets/" + "x" * 5000,
        "/studio/assets",
        "/studio/assets/",
        "/studio/index.html",
        "/studio/../secret.txt",
        "/studio//studio.html",
    ],
)
def test_no_other_file_is_served(admin: AdminEndpoint, path: str) -> None:
    with socket.create_connection(("127.0.0.1", admin.port), timeout=60) as stranger:  # which sends the path as it is
        stranger.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: stranger.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 404"), answer[:200]


def test_page_that_was_not_built(page: httpx.Client, built: Path) -> None:
    (built / "studio.html").unlink()
    response = page.get("/studio/")
    assert response.status_code == 503
    assert "make demo" in response.text
    assert "HEADWATER_NONCE" not in response.text


def test_no_studio_without_tokens(ruled: RuledStore, built: Path) -> None:
    ruled.serve(SERVED)
    with running_admin(AdminSettings((), ruled.store.address, (NOWHERE,))) as admin, plain_http(admin.port) as page:
        assert [page.get(f"/studio{path}").status_code for path in ("", "/", "/session")] == [404] * 3


def test_studio_is_at_the_port_of_operators(ruled: RuledStore, built: Path) -> None:
    ruled.serve(SERVED)
    settings = AdminSettings((OPERATOR,), ruled.store.address, (NOWHERE,))
    with running_admin(settings, own_port=True) as admin, plain_http(admin.public_port) as public:
        assert [http.get("/studio/").status_code for http in (admin.http, public)] == [200, 404]
        assert public.post("/studio/session", json={"token": TOKEN}).status_code == 404


def test_copied_cookie_ends_with_the_session(admin: AdminEndpoint, page: httpx.Client, ruled: RuledStore) -> None:
    """Here, in another process of the endpoint that follows the same store, in open events, and after a restart."""
    settings = AdminSettings((OPERATOR, VIEWER), ruled.store.address, (NOWHERE,))
    sign_in(page, name="Ada")
    copied = dict(page.cookies)
    with running_admin(settings) as other, plain_http(other.port) as beside, plain_http(admin.port) as thief:
        for http in (beside, thief):
            http.cookies.update(copied)
            assert http.get("/studio/session").status_code == 200
        with plain_http(admin.port) as second:
            sign_in(second, name="Ada")
            with beside.stream("GET", "/api/headwater/v1/progress") as events:
                assert page.delete("/studio/session").status_code == 204
                assert code(thief.get("/api/admin/v1/status")) == (401, "PSYNC_S2101")
                assert "data: " in "\n".join(events.iter_lines()), "and the lines have an end"
            assert code(beside.get("/api/admin/v1/status")) == (401, "PSYNC_S2101")
            assert second.get("/studio/session").status_code == 200, "another session goes on"
    with running_admin(settings) as again, plain_http(again.port) as http:
        http.cookies.update(copied)
        assert code(http.get("/studio/session")) == (401, "PSYNC_S2101")
    listed = admin.get("/api/headwater/v1/revocations")["revocations"]
    assert [each["kind"] for each in listed] == ["studio"]
    assert not any(part and part in str(listed) for part in copied["headwater_studio"].split("."))


def test_other_page_signs_nobody_out(page: httpx.Client) -> None:
    sign_in(page)
    assert code(page.delete("/studio/session", headers={"origin": "http://evil.example"})) == (403, "HW_6207")
    assert page.get("/studio/session").status_code == 200


@pytest.mark.parametrize("now", [(), (VIEWER,), (AdminToken(TOKEN, Role.VIEW),), (AdminToken(f"{TOKEN}, renewed"),)])
def test_changed_config_ends_sessions(page: httpx.Client, ruled: RuledStore, now: tuple[AdminToken, ...]) -> None:
    sign_in(page)
    with (
        running_admin(AdminSettings(now, ruled.store.address, (NOWHERE,))) as changed,
        plain_http(changed.port) as http,
    ):
        http.cookies.update(page.cookies)
        assert code(http.get("/api/admin/v1/status")) == (401, "PSYNC_S2101")
