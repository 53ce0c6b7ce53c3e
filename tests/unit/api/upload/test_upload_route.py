"""What uploads may take of an endpoint's memory, in all and of one user."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from httpx import ASGITransport, AsyncClient, Response
from starlette.types import Message

from headwater.api.app import ApiSettings, create_app
from headwater.api.auth import claims
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import parse_key
from headwater.api.errors import ApiError
from headwater.api.upload import route
from headwater.api.upload.messages import MAX_TRANSACTIONS, UploadRequest, parse_upload
from headwater.api.upload.route import TooManyUploadsError, UploadLimits
from headwater.source.upload.apply import Outcome, Taken, Uploads
from headwater.source.upload.entries import ClientTransaction, Device
from headwater.source.upload.settings import UploadSettings
from headwater.storage.contract.store import Revocation, RevokedKind
from tests.support.fix_admin import NOWHERE
from tests.support.fix_api import AUDIENCE, PlayedHead, jwk, make_token
from tests.support.memory_store import MemoryStore

T = TypeVar("T")
MEBIBYTE = 1024 * 1024
LARGE = json.dumps({"client_id": "phone", "transactions": [{"crud": [], "tx_id": 1}] * 30_000}).encode()
SMALL = b'{"client_id":"phone","transactions":[]}'
MIDDLING = SMALL + b" " * (200 * 1024)
UPLOADS = UploadSettings(NOWHERE, "nobody", max_body_bytes=MEBIBYTE)
SETTINGS = ApiSettings(KeyRing((parse_key(jwk()),)), frozenset({AUDIENCE}), upload=UPLOADS)


def test_bytes_in_all_and_per_user() -> None:
    limits = UploadLimits(10, 10, most_bytes=100, most_bytes_per_user=60)
    with ExitStack() as stack:
        stack.enter_context(limits.room_for("ann"))(40)
        with limits.room_for("ann") as hold:
            hold(20)
            with pytest.raises(TooManyUploadsError, match="of this user"):
                hold(1)
        ben = stack.enter_context(limits.room_for("ben"))
        ben(60)
        with limits.room_for("eve") as hold, pytest.raises(TooManyUploadsError):
            hold(1)
    with limits.room_for("ann") as hold:
        hold(60)


def test_large_bodies_leave_room_for_small_ones() -> None:
    limits = UploadLimits(10, 10, most_bytes=100, most_bytes_per_user=100, uncounted=50)
    with limits.room_for("ann") as large, limits.room_for("ben") as small:
        large(30)
        large(120)
        small(50)
        with pytest.raises(TooManyUploadsError):
            large(1)
        with pytest.raises(TooManyUploadsError):
            small(1)
    with limits.room_for("eve") as hold:
        hold(150)


def test_too_many_transactions() -> None:
    transactions = [{"crud": [{"op_id": number, "op": "DELETE"}]} for number in range(1, MAX_TRANSACTIONS + 2)]
    assert len(parse_upload(upload_of(*transactions[:-1], {"crud": []})).transactions) == MAX_TRANSACTIONS
    with pytest.raises(ApiError, match="HW_6104"):
        parse_upload(upload_of(*transactions))


Post = Callable[[str, bytes], Awaitable[Response]]


async def with_app(store: MemoryStore, story: Callable[[Post], Awaitable[T]], settings: ApiSettings = SETTINGS) -> T:
    """Run a story that uploads as users to an app in this process."""
    app = create_app(settings, store, PlayedHead())
    http = AsyncClient(transport=ASGITransport(app), base_url="http://headwater")

    async def post(user: str, body: bytes) -> Response:
        return await http.post("/upload", content=body, headers={"authorization": f"Token {make_token(user)}"})

    async with app.router.lifespan_context(app), http:
        return await story(post)


def upload_of(*transactions: object) -> bytes:
    return json.dumps({"client_id": "phone", "transactions": transactions}).encode()


def deletes(*numbers: int, **more: object) -> bytes:
    entry = {"op": "DELETE", "type": "notes", "id": "1", **more}
    return upload_of(*({"crud": [{"op_id": number, **entry}]} for number in numbers))


class Parsing:
    """Parses large uploads once `go` is set, and notes how many are parsed at the same time."""

    def __init__(self) -> None:
        self.go, self._lock = threading.Event(), threading.Lock()
        self.now = self.most = 0

    def __call__(self, body: bytes) -> UploadRequest:
        if len(body) < MEBIBYTE // 4:
            return parse_upload(body)
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        assert self.go.wait(30)
        with self._lock:
            self.now -= 1
        return parse_upload(body)


def test_large_uploads_are_parsed_one_by_one(memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    parsing = Parsing()
    monkeypatch.setattr(route, "parse_upload", parsing)

    async def story(post: Post) -> list[Response]:
        large = [asyncio.ensure_future(post(f"u{number}", LARGE)) for number in range(4)]
        try:
            small = [await post("ann", body) for body in [SMALL, MIDDLING] * 10]
        finally:
            parsing.go.set()
        return [*small, *await asyncio.gather(*large)]

    answers = asyncio.run(with_app(memory_store, story))
    assert {answer.status_code for answer in answers} == {200}
    assert parsing.most == 1


def test_huge_uploads_applied_at_once_are_limited(memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    huge, large = (deletes(1, data={"x": "x" * size}) for size in (route.HUGE, MEBIBYTE // 2))
    go, held, inside = asyncio.Event(), asyncio.Event(), list[str]()
    most = 0

    async def take(_: Uploads, device: Device, transaction: ClientTransaction) -> Outcome:
        nonlocal most
        if len(transaction.text) > route.HUGE:
            inside.append(device.sub)
            most = max(most, len(inside))
            assert len({*inside}) == len(inside), "of one user, one at a time"
            if len(inside) == route.MOST_HUGE:
                held.set()
            await go.wait()
            inside.remove(device.sub)
        return Outcome(Taken.APPLIED)

    monkeypatch.setattr(Uploads, "take", take)

    async def story(post: Post) -> list[Response]:
        waiting = [asyncio.ensure_future(post(user, huge)) for user in ("ann", "ann", "ben", "eve", "joe")]
        try:
            await asyncio.wait_for(held.wait(), 60)
            smaller = [await post(user, large) for user in ("ann", "ben", "ada")]
        finally:
            go.set()
        return [*smaller, *await asyncio.gather(*waiting)]

    settings = replace(SETTINGS, upload=replace(UPLOADS, max_body_bytes=2 * MEBIBYTE))
    answers = asyncio.run(with_app(memory_store, story, settings))
    assert [answer.status_code for answer in answers] == [200] * 8
    assert most == route.MOST_HUGE


@pytest.mark.parametrize(("how", "code"), [("revoked", "PSYNC_S2101"), ("expired", "PSYNC_S2103")])
def test_upload_ends_with_its_token(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch, how: str, code: str
) -> None:
    taken = []

    async def story(post: Post) -> Response:
        async def take(_: Uploads, __: Device, transaction: ClientTransaction) -> Outcome:
            taken.append(transaction.first_op)
            if transaction.first_op == 2 and how == "expired":
                monkeypatch.setattr(claims, "TOLERANCE", -1000)
            elif transaction.first_op == 2:
                memory_store.revoked.append(Revocation(1, RevokedKind.USER, "ann", time.time() + 60, time.time() + 600))
                async with asyncio.timeout(60):
                    while (await post("ann", b"none")).status_code != 401:  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
            return Outcome(Taken.APPLIED)

        monkeypatch.setattr(Uploads, "take", take)
        return await post("ann", deletes(1, 2, 3))

    answer = asyncio.run(with_app(memory_store, story))
    assert taken == [1, 2]
    told = answer.json()
    assert (answer.status_code, told["error"]["code"]) == (401, code)
    assert [each["last_op_id"] for each in told["transactions"]] == [1, 2]


def test_rest_is_left_when_the_client_is_gone(memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    gone, taken = asyncio.Event(), []

    async def take(_: Uploads, __: Device, transaction: ClientTransaction) -> Outcome:
        taken.append(transaction.first_op)
        if transaction.first_op == 2:
            gone.set()
        return Outcome(Taken.APPLIED)

    monkeypatch.setattr(Uploads, "take", take)

    async def story() -> None:
        messages = [{"type": "http.request", "body": deletes(1, 2, 3), "more_body": False}]

        async def receive() -> Message:
            if not messages:
                await gone.wait()
            return messages.pop() if messages else {"type": "http.disconnect"}

        async def send(_: Message) -> None: ...

        headers = [(b"host", b"headwater"), (b"authorization", f"Token {make_token('ann')}".encode())]
        scope: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http"}
        scope |= {"path": "/upload", "raw_path": b"/upload", "query_string": b"", "headers": headers}
        scope["client"] = ("127.0.0.1", 1)
        app = create_app(SETTINGS, memory_store, PlayedHead())
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)

    asyncio.run(story())
    assert taken == [1, 2]
