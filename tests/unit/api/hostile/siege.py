"""Many hostile clients at once, and a user beside them who means well."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from headwater.telemetry.log_facts import facts_of
from tests.unit.api.hostile.conversation import Conversation, Credentials
from tests.unit.api.hostile.line import Connect, Line
from tests.unit.api.hostile.requests import HostileRequests
from tests.unit.api.hostile.sockets import HostileSockets
from tests.unit.api.hostile.verdict import heard

AT_ONCE: Final = 48
BETWEEN: Final = 500
"""Conversations after which the user beside them has to be answered again."""


def conversations(
    seed: int, number: int, credentials: Credentials, left_out: frozenset[str] = frozenset()
) -> Iterator[Conversation]:
    """`number` conversations: the same for the same seed, but for the times in tokens. `left_out` are paths of admin
    routes that nobody asks."""
    chance = random.Random(seed)
    requests, sockets = HostileRequests(chance, credentials, left_out), HostileSockets(chance, credentials)
    kinds: dict[Callable[[], Conversation], int] = {
        requests.body: 22,
        requests.token: 8,
        requests.headers: 14,
        requests.address: 8,
        requests.framing: 8,
        requests.raw: 6,
        requests.noise: 1,
        requests.admin: 3,
        sockets.handshake: 4,
        sockets.messages: 7,
        sockets.frames: 10,
        sockets.requests: 9,
    }
    for make in chance.choices(list(kinds), list(kinds.values()), k=number):
        yield make()


@dataclass(slots=True)
class Tally:
    """What was answered: statuses of HTTP, closes of websockets and errors of RSocket, each how often."""

    conversations: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    closes: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        parts = (dict(sorted(each.items(), key=str)) for each in (self.statuses, self.closes, self.errors))
        return f"{self.conversations:,} conversations: statuses, closes, errors {' '.join(map(str, parts))}"


class Neighbour:
    """A user with an open stream, who asks for a checkpoint now and then and has to see it come."""

    def __init__(self, connect: Connect, token: str) -> None:
        self._connect = connect
        self._head = f"HTTP/1.1\r\nhost: x\r\nauthorization: Token {token}\r\ncontent-type: application/json\r\n"
        self._line: Line | None = None
        self._asked = 0

    async def is_served(self) -> None:
        """Raises TimeoutError or EOFError when the user is not."""
        if self._line is None:
            self._line = await self._post("/sync/stream", {"client_id": "neighbour", "raw_data": True})
            await self._line.until(b'"checkpoint_complete"')
        self._asked += 1
        asking = await self._post("/sync/checkpoint-request", self._request())
        await asking.until(b'"checkpoint_request_id":"%d"' % self._asked)
        asking.hang_up()
        await self._line.until(b'"write_checkpoint":"%d"' % self._asked)
        self._line.heard.clear()
        fresh = await self._post("/sync/stream", {"raw_data": True})
        await fresh.until(b'"checkpoint_complete"')
        fresh.hang_up()

    def leave(self) -> None:
        if self._line is not None:
            self._line.hang_up()
            self._line = None

    def _request(self) -> dict[str, object]:
        return {"client_id": "neighbour", "checkpoint_request_id": str(self._asked)}

    async def _post(self, path: str, document: dict[str, object]) -> Line:
        body = json.dumps(document)
        line = await self._connect()
        line.send(f"POST {path} {self._head}content-length: {len(body)}\r\n\r\n{body}".encode())
        return line


async def besiege(connect: Connect, conversations: Iterable[Conversation], neighbour: Neighbour, tally: Tally) -> None:
    """Hold all conversations. Raises AssertionError on the first answer that should not have come."""
    waiting = iter(conversations)
    while await _some(connect, islice(waiting, BETWEEN), tally):
        await neighbour.is_served()


async def _some(connect: Connect, conversations: Iterator[Conversation], tally: Tally) -> int:
    before = tally.conversations

    async def talk() -> None:
        for conversation in conversations:
            line = await connect()
            await line.converse(conversation)
            _note(tally, conversation, bytes(line.heard))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(talk())
    return tally.conversations - before


def _note(tally: Tally, conversation: Conversation, content: bytes) -> None:
    found = heard(content)
    said = b"".join(conversation.pieces)
    assert not found.wrong, f"{found.wrong} after {conversation.kind}: {said[:3000]!r} was answered {content[-2000:]!r}"
    tally.conversations += 1
    tally.statuses.update(found.statuses)
    tally.closes.update(found.closes)
    tally.errors.update(found.errors)


@contextmanager
def no_failure_in_the_log() -> Iterator[None]:
    """Fail when anything was logged as an error, or with a traceback, but for uploads of a column that the table lacks
    (HW_6118): those wait for the operator."""
    kept: list[str] = []

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            for_operator = facts_of(record).get("code") == "HW_6118" and not record.exc_info
            if (record.levelno >= logging.ERROR or record.exc_info) and not for_operator:
                kept.append(logging.Formatter().format(record)[:3000])

    root, watch = logging.getLogger(), Watch()
    before, root.handlers = root.handlers, [watch]  # pytest's would keep every line
    try:
        yield
    finally:
        root.handlers = before
    assert not kept, "\n".join(kept[:5])
