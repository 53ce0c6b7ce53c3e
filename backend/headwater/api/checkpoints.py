"""Numbers that a client's own writes are in, once a checkpoint carries them: ours, or the client's own.

`GET /write-checkpoint2.json` gives out the next one. `POST /sync/checkpoint-request` takes one that the client chose,
and is forgotten some time after it was last asked for.

Requests that come while another batch is at the source wait, and share the next look at the source's log: its
position is read after all of them arrived.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headwater.api.auth.verify import Principal, Verifier
from headwater.api.errors import NoActiveConfigError, TooManyRequestsError
from headwater.api.http.body import read_body
from headwater.api.refusals import prove
from headwater.api.shares import Shares
from headwater.api.streams.reading import StoreThreads
from headwater.errors import HeadwaterError, Kind
from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reader import StoreReader
from headwater.sync.request import parse_checkpoint_request, parse_client_id, write_key

MAX_WAITING = 200
MAX_WAITING_OF_USER = 20

REQUESTS_KEPT = 3600.0
"""Seconds after which an id that a client chose is forgotten, unless it is asked for again."""

SWEEP_SECONDS = 60.0

log = logging.getLogger(__name__)


class Head(Protocol):
    """The end of the sources' logs."""

    async def advance_past(self) -> Mapping[str, Lsn]:
        """Per source tag a position that no transaction committed before the call lies after, and a nudge so that
        an idle source moves past it. Raises HeadwaterError of kind RETRY when a source does not answer."""

    async def close(self) -> None: ...


_Number = Callable[[Sequence[str]], dict[str, int]]
"""Has the store number the next write of each key."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Who waits for a number: the next one, or one that was `chosen`."""

    key: str
    chosen: int | None
    future: asyncio.Future[int]


class WriteCheckpoints:
    """Numbers writes, in batches: one at a time, so that the positions of one client never go back."""

    def __init__(
        self,
        reader: StoreReader,
        threads: StoreThreads,
        head: Head,
        created: Callable[[], None],
        keep_requests: float = REQUESTS_KEPT,
    ) -> None:
        self._keep_requests = keep_requests
        self._swept = 0.0
        self._reader = reader
        self._threads = threads
        self._head = head
        self._created = created
        self._waiting: list[_Waiting] = []
        self._worker: asyncio.Task[None] | None = None

    async def create(self, key: str) -> int:
        """The id of a new write checkpoint. Raises TooManyRequestsError, or what the source or the store raises."""
        return await self._ask(key, None)

    async def request(self, key: str, chosen: int) -> int:
        """Have a write checkpoint with an id that the client chose, unless there is a higher one. Returns the id that
        there is then. Raises as `create` does."""
        return await self._ask(key, chosen)

    async def _ask(self, key: str, chosen: int | None) -> int:
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyRequestsError("too many write checkpoints are being made")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(key, chosen, future))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        return await future

    async def close(self) -> None:
        """Give up what is waiting."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])

    async def _work(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._answer(batch)
        finally:
            self._worker = None

    async def _answer(self, batch: Sequence[_Waiting]) -> None:
        try:
            lsns = await self._head.advance_past()
        except Exception as error:  # noqa: BLE001 - each of those who wait is told
            _settle(batch, dict.fromkeys((each.key for each in batch), error))
            return
        created = [each for each in batch if each.chosen is None]
        requested = [each for each in batch if each.chosen is not None]
        highest = {each.key: each.chosen or 0 for each in sorted(requested, key=lambda each: each.chosen or 0)}
        if created:
            keys = list(dict.fromkeys(each.key for each in created))
            _settle(created, await self._number(keys, lambda some: self._reader.create_write_checkpoint(some, lsns)))
        if requested:
            _settle(
                requested,
                await self._number(
                    list(highest),
                    lambda some: self._reader.request_write_checkpoint({key: highest[key] for key in some}, lsns),
                ),
            )
        self._created()
        if requested:
            await self._sweep()

    async def _number(self, keys: Sequence[str], number: _Number) -> Mapping[str, int | Exception]:
        """All keys at once; if that fails for another reason than that the store is away, each for itself, so that a
        key which the store can't take is nobody else's failure."""
        try:
            return await self._threads.promptly(partial(number, keys))
        except Exception as error:  # noqa: BLE001 - whoever asked for it is told
            if len(keys) == 1 or (isinstance(error, HeadwaterError) and error.kind is Kind.RETRY):
                return dict.fromkeys(keys, error)
        return {key: outcome for one in keys for key, outcome in (await self._number([one], number)).items()}

    async def _sweep(self) -> None:
        """Now and then, forget what nobody has asked for in a while."""
        now = time.monotonic()
        if now < self._swept + SWEEP_SECONDS:
            return
        self._swept = now
        try:
            await self._threads.promptly(partial(self._reader.forget_write_requests, self._keep_requests))
        except Exception as error:  # noqa: BLE001 - those who wait for a number must not wait for this
            log.warning("old checkpoint requests were not forgotten, trying again: %s", error)


def _settle(waiting: Sequence[_Waiting], outcomes: Mapping[str, int | Exception]) -> None:
    for each in waiting:
        outcome = outcomes[each.key]
        if each.future.done():
            continue
        if isinstance(outcome, Exception):
            each.future.set_exception(outcome)
        else:
            each.future.set_result(outcome)


class WriteCheckpointRoute:
    """The handlers."""

    def __init__(self, verifier: Verifier, writes: WriteCheckpoints, is_active: Callable[[], bool]) -> None:
        self._verifier = verifier
        self._writes = writes
        self._is_active = is_active
        self._shares = Shares("write checkpoints being made", MAX_WAITING_OF_USER)

    async def create(self, request: Request) -> Response:
        """`GET /write-checkpoint2.json?client_id=…`"""
        user = await self._admit(request)
        client_id = parse_client_id(request.query_params.get("client_id"))
        with self._shares.take(user.user_id):
            checkpoint = await self._writes.create(write_key(user.user_id, client_id))
        return JSONResponse({"data": {"write_checkpoint": str(checkpoint)}})

    async def request(self, request: Request) -> Response:
        """`POST /sync/checkpoint-request`"""
        user = await self._admit(request)
        asked = parse_checkpoint_request(await read_body(request))
        with self._shares.take(user.user_id):
            stored = await self._writes.request(write_key(user.user_id, asked.client_id), asked.id)
        return JSONResponse({"data": {"checkpoint_request_id": str(stored)}})

    async def _admit(self, request: Request) -> Principal:
        user = await self._verifier.authorize(request.headers.get("authorization"))
        prove(request, user.user_id)
        if not self._is_active():
            raise NoActiveConfigError
        return user
