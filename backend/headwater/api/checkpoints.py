"""`GET /write-checkpoint2.json`: a number that a client's own writes are in, once a checkpoint carries it.

Requests that come while another batch is at the source wait, and share the next look at the source's log: its
position is read after all of them arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headwater.api.auth.verify import Verifier
from headwater.api.errors import NoActiveConfigError, TooManyRequestsError
from headwater.api.refusals import prove
from headwater.api.streams.reading import StoreThreads
from headwater.errors import HeadwaterError, Kind
from headwater.oplog.lsn import Lsn
from headwater.storage.contract.store import StoreReader
from headwater.sync.request import parse_client_id, write_key

MAX_WAITING = 200


class Head(Protocol):
    """The end of the sources' logs."""

    async def advance_past(self) -> Mapping[str, Lsn]:
        """Per source tag a position that no transaction committed before the call lies after, and a nudge so that
        an idle source moves past it. Raises HeadwaterError of kind RETRY when a source does not answer."""

    async def close(self) -> None: ...


class WriteCheckpoints:
    """Numbers writes, in batches: one at a time, so that the positions of one client never go back."""

    def __init__(self, reader: StoreReader, threads: StoreThreads, head: Head, created: Callable[[], None]) -> None:
        self._reader = reader
        self._threads = threads
        self._head = head
        self._created = created
        self._waiting: list[tuple[str, asyncio.Future[int]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def create(self, key: str) -> int:
        """The id of a new write checkpoint. Raises TooManyRequestsError, or what the source or the store raises."""
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyRequestsError("too many write checkpoints are being made")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, future))
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

    async def _answer(self, batch: list[tuple[str, asyncio.Future[int]]]) -> None:
        keys = list(dict.fromkeys(key for key, _ in batch))
        try:
            lsns = await self._head.advance_past()
        except Exception as error:  # noqa: BLE001 - each of those who wait is told
            outcomes: Mapping[str, int | Exception] = dict.fromkeys(keys, error)
        else:
            outcomes = await self._number(keys, lsns)
        self._created()
        for key, future in batch:
            outcome = outcomes[key]
            if future.done():
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

    async def _number(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> Mapping[str, int | Exception]:
        """All keys at once; if that fails for another reason than that the store is away, each for itself, so that a
        key which the store can't take is nobody else's failure."""
        try:
            return await self._threads.promptly(partial(self._reader.create_write_checkpoint, keys, lsns))
        except Exception as error:  # noqa: BLE001 - whoever asked for it is told
            if len(keys) == 1 or (isinstance(error, HeadwaterError) and error.kind is Kind.RETRY):
                return dict.fromkeys(keys, error)
        return {key: outcome for one in keys for key, outcome in (await self._number([one], lsns)).items()}


class WriteCheckpointRoute:
    """The handler."""

    def __init__(self, verifier: Verifier, writes: WriteCheckpoints, is_active: Callable[[], bool]) -> None:
        self._verifier = verifier
        self._writes = writes
        self._is_active = is_active

    async def answer(self, request: Request) -> Response:
        """Handle one request."""
        client_id = parse_client_id(request.query_params.get("client_id"))
        user = await self._verifier.authorize(request.headers.get("authorization"))
        prove(request, user.user_id)
        if not self._is_active():
            raise NoActiveConfigError
        checkpoint = await self._writes.create(write_key(user.user_id, client_id))
        return JSONResponse({"data": {"write_checkpoint": str(checkpoint)}})
