"""What uploads may take of an endpoint's memory, in all and of one user."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response
from starlette.types import Message

from headwater.api.app import ApiSettings, create_app
from headwater.api.auth import claims
from headwater.api.auth.keys import StaticKeys, parse_key
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

MEBIBYTE = 1024 * 1024
LARGE = json.dumps({"client_id": "phone", "transactions": [{"crud": [], "tx_id": 1}] * 30_000}).encode()
SMALL = b'{"client_id":"phone","transactions":[]}'
MIDDLING = SMALL + b" " * (200 * 1024)
UPLOADS = UploadSettings(NOWHERE, "nobody", max_body_bytes=MEBIBYTE)
SETTINGS = ApiSettings(StaticKeys((parse_key(jwk()),)), frozenset({AUDIENCE}), upload=UPLOADS)


def test_bytes_are_bounded_in_all_and_per_user_until_the_upload_is_over() -> None:
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


def test_more_transactions_than_others_can_wait_for_are_refused() -> None:
    transactions = [{"crud": [{"op_id": number, "op": "DELETE"}]} for number in range(1, MAX_TRANSACTIONS + 2)]
    most = json.dumps({"client_id": "phone", "transactions": [*transactions[:-1], {"crud": []}]})
    assert len(parse_upload(most.encode()).transactions) == MAX_TRANSACTIONS
    with pytest.raises(ApiError, match="HW_6104"):
        parse_upload(json.dumps({"client_id": "phone", "transactions": transactions}).encode())


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


def test_large_uploads_wait_for_each_other_and_others_do_not(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing = Parsing()
    monkeypatch.setattr(route, "parse_upload", parsing)

    async def story() -> list[Response]:
        app = create_app(SETTINGS, memory_store, PlayedHead())
        http = AsyncClient(transport=ASGITransport(app), base_url="http://headwater")
        async with app.router.lifespan_context(app), http:

            async def upload(user: str, body: bytes) -> Response:
                return await http.post("/upload", content=body, headers={"authorization": f"Token {make_token(user)}"})

            large = [asyncio.create_task(upload(f"u{number}", LARGE)) for number in range(4)]
            try:
                small = [await upload("ann", body) for body in [SMALL, MIDDLING] * 10]
            finally:
                parsing.go.set()
            return [*small, *await asyncio.gather(*large)]

    answers = asyncio.run(story())
    assert {answer.status_code for answer in answers} == {200}
    assert parsing.most == 1


def test_few_huge_uploads_are_applied_at_once_and_smaller_ones_do_not_wait_for_them(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = {"crud": [{"op_id": 1, "op": "DELETE", "type": "notes", "id": "1", "data": {"x": "x" * route.HUGE}}]}
    large = {"crud": [{"op_id": 1, "op": "DELETE", "type": "notes", "id": "1", "data": {"x": "x" * (MEBIBYTE // 2)}}]}
    settings = replace(SETTINGS, upload=replace(UPLOADS, max_body_bytes=2 * MEBIBYTE))
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

    async def story() -> list[Response]:
        app = create_app(settings, memory_store, PlayedHead())
        http = AsyncClient(transport=ASGITransport(app), base_url="http://headwater")
        async with app.router.lifespan_context(app), http:

            async def upload(user: str, transaction: object) -> Response:
                body = json.dumps({"client_id": "phone", "transactions": [transaction]}).encode()
                return await http.post("/upload", content=body, headers={"authorization": f"Token {make_token(user)}"})

            waiting = [asyncio.create_task(upload(user, huge)) for user in ("ann", "ann", "ben", "eve", "joe")]
            try:
                async with asyncio.timeout(60):
                    await held.wait()
                    smaller = [await upload(user, large) for user in ("ann", "ben", "ada")]
            finally:
                go.set()
            return [*smaller, *await asyncio.gather(*waiting)]

    answers = asyncio.run(story())
    assert [answer.status_code for answer in answers] == [200] * 8
    assert most == route.MOST_HUGE


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_an_upload_ends_with_its_token_and_tells_what_was_applied(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    crud = [{"crud": [{"op_id": number, "op": "DELETE", "type": "notes", "id": "1"}]} for number in (1, 2, 3)]
    taken = []
    app = create_app(SETTINGS, memory_store, PlayedHead())
    http = AsyncClient(
        transport=ASGITransport(app),
        base_url="http://headwater",
        headers={"authorization": f"Token {make_token('ann')}"},
    )

    async def take(_: Uploads, __: Device, transaction: ClientTransaction) -> Outcome:
        taken.append(transaction.first_op)
        if transaction.first_op == 2 and how == "expired":
            monkeypatch.setattr(claims, "TOLERANCE", -1000)
        elif transaction.first_op == 2:
            memory_store.revoked.append(Revocation(1, RevokedKind.USER, "ann", time.time() + 60, time.time() + 600))
            async with asyncio.timeout(60):
                while (await http.post("/sync/stream", content=b"none")).status_code != 401:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        return Outcome(Taken.APPLIED)

    monkeypatch.setattr(Uploads, "take", take)

    async def story() -> Response:
        async with app.router.lifespan_context(app), http:
            return await http.post("/upload", json={"client_id": "phone", "transactions": crud})

    answer = asyncio.run(story())
    assert taken == [1, 2]
    assert answer.status_code == 401
    told = answer.json()
    assert told["error"]["code"] == {"revoked": "PSYNC_S2101", "expired": "PSYNC_S2103"}[how]
    assert [each["last_op_id"] for each in told["transactions"]] == [1, 2]


def test_the_rest_of_an_upload_whose_client_has_gone_is_left(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    crud = [{"crud": [{"op_id": number, "op": "DELETE", "type": "notes", "id": "1"}]} for number in (1, 2, 3)]
    body = json.dumps({"client_id": "phone", "transactions": crud}).encode()
    gone, taken = asyncio.Event(), []

    async def take(_: Uploads, __: Device, transaction: ClientTransaction) -> Outcome:
        taken.append(transaction.first_op)
        if transaction.first_op == 2:
            gone.set()
        return Outcome(Taken.APPLIED)

    monkeypatch.setattr(Uploads, "take", take)

    async def story() -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

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
