"""Who may only read keeps nobody else from working, however much he asks for at once, and however odd it is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from headwater.api.admin import route, trial
from headwater.api.admin.route import AdminSettings
from headwater.api.admin.status import MOST_VIEWERS
from headwater.api.studio.tokens import AdminToken, Role
from tests.support.fix_admin import NOWHERE, OPERATOR, AdminEndpoint, running_admin
from tests.support.plain_http import plain_http
from tests.support.ruled_configs import SERVED
from tests.support.ruled_store import RuledStore
from tests.support.waiting import wait_until

OURS = "/api/headwater/v1"
VIEWER = AdminToken("the token of a viewer in tests", Role.VIEW, "Vera")


@pytest.fixture
def admin(ruled: RuledStore) -> Iterator[AdminEndpoint]:
    ruled.serve(SERVED)
    with running_admin(AdminSettings((OPERATOR, VIEWER), ruled.store.address, (NOWHERE,))) as endpoint:
        yield endpoint


@pytest.fixture
def viewer(admin: AdminEndpoint) -> Iterator[httpx.Client]:
    with plain_http(admin.port, {"authorization": f"Token {VIEWER.text}"}) as http:
        yield http


class Held:
    """Stands for a function that takes long. `inside` counts the calls that it holds."""

    def __init__(self) -> None:
        self.inside = 0
        self.go = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, *_: object, **__: object) -> tuple[()]:
        with self._lock:
            self.inside += 1
        self.go.wait(150)
        return ()


@contextmanager
def flooded(viewer: httpx.Client, held: Held, request: httpx.Request, running: int, waiting: int) -> Iterator[None]:
    """As many requests at once as there is room for, of which so many are `running`."""
    threads = [threading.Thread(target=viewer.send, args=(request,)) for _ in range(running + waiting)]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: held.inside == running, "the first ones to be worked on")
        yield
        assert held.inside == running, "no more at once, since they take CPU from devices"
    finally:
        held.go.set()
        for thread in threads:
            thread.join(60)


def works(admin: AdminEndpoint) -> None:
    """An operator ends a stream, and deploys."""
    admin.post(f"{OURS}/terminate", user="u1")
    assert admin.post(f"{OURS}/deploy", content=f"{SERVED}# edited\n")["new"]


def test_viewer_checks_huge_configs(
    admin: AdminEndpoint, viewer: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr("headwater.api.admin.rules.findings_in", held)
    request = viewer.build_request("POST", f"{OURS}/validate", json={"content": SERVED}, timeout=150)
    with flooded(viewer, held, request, route.COMPILING, route.COMPILING_WAITING):
        works(admin)
        assert viewer.get("/api/admin/v1/status").status_code == 200


def test_viewer_asks_for_everything_at_once(
    admin: AdminEndpoint, viewer: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr("headwater.api.admin.completion.files", held)
    request = viewer.build_request("GET", f"{OURS}/config-schema", timeout=150)
    with flooded(viewer, held, request, route.RUNNING, route.WAITING):
        works(admin)


def test_viewers_leave_places_to_watch_progress(admin: AdminEndpoint, viewer: httpx.Client) -> None:
    with ExitStack() as stack:
        watched = []
        for _ in range(MOST_VIEWERS):
            watched.append(stack.enter_context(viewer.stream("GET", f"{OURS}/progress")).iter_lines())
            assert next(watched[-1]) == "event: progress"
        with viewer.stream("GET", f"{OURS}/progress") as refused:
            assert refused.status_code == 429
        with admin.http.stream("GET", f"{OURS}/progress") as events:
            assert events.status_code == 200


@pytest.mark.parametrize("depth", [200, 980, 1019])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"])
def test_deeply_nested_bodies(admin: AdminEndpoint, ruled: RuledStore, opening: str, closing: str, depth: int) -> None:
    nested = f"{opening * depth}1{closing * depth}"
    client = f'{{"user": "u1", "claims": {{"a": [{"0," * 100_000}{nested}]}}}}'
    for path, body in (
        ("explain/user", f'{{"client": {client}}}'),
        ("cases", f'{{"case": {{"name": "a", "client": {client}}}}}'),
        ("terminate", nested),
    ):
        headers = {"content-type": "application/json"}
        error = admin.refusal("POST", f"{OURS}/{path}", 400, content=body, headers=headers)
        assert (error["code"], "nested" in error["description"]) == ("HW_6201", True)
    assert not ruled.store.cases()


def test_nesting_that_devices_may_send(admin: AdminEndpoint) -> None:
    nested = f"{'[' * 99}1{']' * 99}"
    body = f'{{"client": {{"user": "u1", "parameters": {{"a": {nested}}}}}}}'
    response = admin.http.post(f"{OURS}/explain/user", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 200


def test_all_cases_fit_into_an_answer(admin: AdminEndpoint, ruled: RuledStore) -> None:
    assert trial.MOST_CASES * trial.MOST_OF_CASE < route.MOST_BYTES
    case = {"name": "a", "client": {"user": "u1", "claims": {"a": "x" * trial.MOST_OF_CASE}}}
    assert admin.refusal("POST", f"{OURS}/cases", 400, json={"case": case})["code"] == "HW_6201"
    assert not ruled.store.cases()
