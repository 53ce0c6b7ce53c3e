"""What an operator takes back at one process of the endpoint is taken back at all, within seconds and over restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from headwater.api.admin.route import AdminSettings
from tests.support.fix_admin import NOWHERE, OPERATOR, SECRET, AdminEndpoint, running_admin
from tests.support.fix_api import make_token
from tests.support.ruled_configs import SERVED
from tests.support.ruled_store import RuledStore
from tests.support.waiting import wait_until

OURS = "/api/headwater/v1"
PROMISED_SECONDS = 15.0  # with what a busy machine takes, and before anything else would come

Start = Callable[[], AdminEndpoint]


@pytest.fixture
def start(ruled: RuledStore) -> Iterator[Start]:
    """Starts further processes of the endpoint, as far as a store can tell."""
    ruled.serve(SERVED)
    settings = AdminSettings((OPERATOR,), ruled.store.address, (NOWHERE,))
    with ExitStack() as stack:
        yield lambda: stack.enter_context(running_admin(settings))


@contextmanager
def stream(endpoint: AdminEndpoint, user: str, client: str = "", **claims: Any) -> Iterator[Iterator[str]]:
    """The lines of an open stream, the first checkpoint of which was complete."""
    headers = {"authorization": f"Token {make_token(user, secret=SECRET, **claims)}"}
    body = {"client_id": client} if client else {}
    with endpoint.http.stream("POST", "/sync/stream", json=body, headers=headers, timeout=PROMISED_SECONDS) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert any("checkpoint_complete" in line for line in lines)
        yield lines


def clients(endpoint: AdminEndpoint) -> set[tuple[str, str | None]]:
    return {(each["user"], each["client"]) for each in endpoint.get(f"{OURS}/clients")["clients"]}


def ends(lines: Iterator[str]) -> None:
    """The stream ends by itself, with a complete body: nobody has to wait for longer than is promised."""
    assert not any("checkpoint" in line for line in lines)


def test_devices_are_found_and_paged(start: Start) -> None:
    one = start()
    names = ["Ann", "ann-marie", "bob"]
    with ExitStack() as stack:
        for number, user in enumerate(names):
            stack.enter_context(stream(one, user, f"phone-{number}"))

        def page(**query: Any) -> tuple[list[str], int, int]:
            told = one.get(f"{OURS}/clients", **query)
            return [each["user"] for each in told["clients"]], told["found"], told["total"]

        assert page() == (names, 3, 3)
        assert page(limit=0) == ([], 3, 3)
        assert page(limit=1, offset=1) == (["ann-marie"], 3, 3)
        assert page(limit=2, offset=2) == (["bob"], 3, 3)
        assert page(offset=9) == ([], 3, 3)
        assert page(find="ANN") == (["Ann", "ann-marie"], 2, 3)
        assert page(find="phone-2") == (["bob"], 1, 3)
        assert page(find="n\np") == ([], 0, 3), "a match lies in one of both"
    for wrong in ({"limit": -1}, {"offset": -1}, {"limit": 10_001}, {"find": "x" * 201}, {"page": 1}):
        assert one.refusal("GET", f"{OURS}/clients", 400, params=wrong)["code"] == "HW_6201"


def test_revocations_are_paged_from_the_newest(start: Start) -> None:
    one = start()
    for number in range(4):
        one.post(f"{OURS}/revoke", kind="sub", value=f"u{number}")

    def page(**query: Any) -> tuple[list[str], int]:
        told = one.get(f"{OURS}/revocations", **query)
        return [each["value"] for each in told["revocations"]], told["total"]

    assert page() == (["u0", "u1", "u2", "u3"], 4)
    assert page(limit=2) == (["u2", "u3"], 4)
    assert page(limit=2, skip=1) == (["u1", "u2"], 4)
    assert page(limit=2, skip=3) == (["u0"], 4)
    assert page(limit=2, skip=4) == ([], 4)


def test_terminate_user(start: Start) -> None:
    one, other = start(), start()
    with stream(one, "u1", "phone") as here, stream(other, "u1", "desk") as there, stream(other, "u2") as stays:
        told = one.post(f"{OURS}/terminate", user="u1")
        assert told["kind"] == "streams"
        ends(here)
        ends(there)
        wait_until(lambda: clients(one) | clients(other) == {("u2", None)}, "the streams to be gone")
        with stream(other, "u1", "desk"):
            assert clients(other) == {("u1", "desk"), ("u2", None)}
        del stays


def test_terminate_client(start: Start) -> None:
    one, other = start(), start()
    with stream(other, "u1", "phone") as phone, stream(other, "u1", "desk"):
        one.post(f"{OURS}/terminate", user="u1", client="phone")
        ends(phone)
        wait_until(lambda: clients(other) == {("u1", "desk")}, "the stream to be gone")


@pytest.mark.parametrize(
    ("kind", "value", "claims", "other_user", "others"),
    [
        ("sub", "u1", {}, "u2", {}),
        ("jti", "token-1", {"jti": "token-1"}, "u1", {"jti": "token-2"}),
        ("session", "s1", {"session_id": "s1"}, "u1", {"session_id": "s2"}),
        ("session", "s1", {"sid": "s1"}, "u1", {"sid": "s2"}),
    ],
)
def test_revoke_ends_streams_in_every_process(
    start: Start, kind: str, value: str, claims: dict[str, str], other_user: str, others: dict[str, str]
) -> None:
    one, other = start(), start()
    with stream(other, "u1", "revoked", **claims) as revoked, stream(other, other_user, "kept", **others):
        told = one.post(f"{OURS}/revoke", kind=kind, value=value)
        ends(revoked)
        wait_until(lambda: {client for _, client in clients(other)} == {"kept"}, "the stream to be gone")
    (found,) = other.get(f"{OURS}/revocations")["revocations"]
    assert found == told
    assert found["until"] > found["since"] + 7 * 86_400


def test_revocation_outlives_processes(start: Start) -> None:
    one = start()
    issued = int(time.time()) - 60
    one.post(f"{OURS}/revoke", kind="sub", value="u1")
    fresh = start()
    assert len(fresh.get(f"{OURS}/revocations")["revocations"]) == 1
    assert refused(fresh, make_token("u1", secret=SECRET, iat=issued))
    assert not refused(fresh, make_token("u2", secret=SECRET, iat=issued))
    later = make_token("u1", secret=SECRET, iat=int(time.time()) + 5)  # whoever signs in again gets in
    assert not refused(fresh, later)


def refused(endpoint: AdminEndpoint, token: str) -> bool:
    """Whether a stream by this token is not to be had, or is ended before it has told anything."""
    headers = {"authorization": f"Token {token}"}
    url = f"http://127.0.0.1:{endpoint.port}/sync/stream"
    with httpx.stream("POST", url, json={}, headers=headers, timeout=60, verify=False) as response:
        if response.status_code != 200:
            return True
        return not any("checkpoint_complete" in line for line in response.iter_lines())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("terminate", {}),
        ("terminate", {"user": "a\0b"}),
        ("terminate", {"user": "u" * 10_001}),
        ("revoke", {"kind": "streams", "value": "x"}),
        ("revoke", {"kind": "sub"}),
        ("revoke", {"kind": "jti", "value": 1}),
    ],
)
def test_invalid_request(admin: AdminEndpoint, path: str, body: dict[str, object]) -> None:
    assert admin.refusal("POST", f"{OURS}/{path}", 400, json=body)["code"] == "HW_6201"
    assert admin.get(f"{OURS}/revocations")["revocations"] == []
