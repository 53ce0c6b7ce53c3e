"""Write checkpoints: numbers by which a client learns that the changes it made at the source have come back to it.

A number is stored with the end of the source's log (its LSN). Once a checkpoint reaches that LSN, the stream sends the
number. `GET /write-checkpoint2.json` gives out the client's next number. `POST /sync/checkpoint-request` takes a number
that the client chose; it is deleted some time after the client last requested it.

Requests are answered in batches. Those that arrive while a batch asks the source for its LSN form the next batch, so
the LSN is always read after the requests that it is for.

With several sources, a number stands for the ends of all their logs, unless the request names those that the client
wrote to. Requests that name the same sources form batches of their own, so that a source which does not answer holds up
nobody who did not write to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headwater.api.auth.verify import Principal, Verifier
from headwater.api.errors import ApiError, TooManyRequestsError
from headwater.api.http.requests import read_body, require_json
from headwater.api.parsing import Parsing
from headwater.api.quota import user_quota
from headwater.api.refusals import prove
from headwater.api.streams.hub import Hub
from headwater.api.streams.threads import StoreThreads
from headwater.api.tasks import Waiters
from headwater.codes import Kind
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn
from headwater.source.head import SourceHead, UnknownHeadError
from headwater.storage.contract.reader import StoreReader
from headwater.sync.interest import News
from headwater.sync.request import parse_checkpoint_request, parse_client_id, write_key
from headwater_rules.plan import tag_of

IN_PATH = "sources"
"""The part of a path that names sources, as `source` of a query does: stock clients append to the endpoint's address,
and can't say more."""

MAX_WAITING = 200
MAX_WAITING_OF_USER = 20

MAX_BODY = 64 * 1024
"""The most bytes of a checkpoint request, which is some 100 bytes long."""

REQUESTS_KEPT = 3600.0
"""Seconds after which a number that a client chose is deleted, unless the client asks for it again."""

SWEEP_SECONDS = 60.0

_UNKNOWN_LOGGED = 100

log = logging.getLogger(__name__)


Sources = frozenset[str] | None
"""The names of sources; None for all."""

_Number = Callable[[Sequence[str]], dict[str, int]]
"""Stores a write checkpoint for each key. Returns the numbers by key."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A request that waits for its number. `chosen` is the client's; None asks for the next one."""

    key: str
    chosen: int | None
    future: asyncio.Future[int]


class WriteCheckpointBatcher:
    """Creates write checkpoints in batches, for each set of sources one batch at a time.

    Calls `created` after each batch. Not thread-safe: use it in one event loop."""

    def __init__(
        self,
        reader: StoreReader,
        threads: StoreThreads,
        head: SourceHead,
        created: Callable[[], None],
        keep_requests: float = REQUESTS_KEPT,
    ) -> None:
        self._keep_requests = keep_requests
        self._swept = 0.0
        self._reader = reader
        self._threads = threads
        self._head = head
        self._created = created
        self._waiting: dict[Sources, list[_Waiting]] = {}
        self._workers: dict[Sources, asyncio.Task[None]] = {}
        self._silent: set[str] = set()

    async def create(self, key: str, chosen: int | None = None, sources: Sources = None) -> int:
        """Create a write checkpoint for the ends of these sources' logs, and return its number: the next one, or that
        which the client chose, unless it has a higher one. Raises TooManyRequestsError, or what the source or the store
        raises; HW_6007 for one of several sources."""
        waiting = self._waiting.setdefault(sources, [])
        if len(waiting) >= MAX_WAITING:
            raise TooManyRequestsError("too many write checkpoints are requested at once")
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting.append(_Waiting(key, chosen, future))
        if sources not in self._workers:
            self._workers[sources] = asyncio.create_task(self._work(sources))
        return await future

    async def close(self) -> None:
        """Cancel the batches in progress; waiting requests are not answered."""
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        if workers:
            await asyncio.wait(workers)

    async def _work(self, sources: Sources) -> None:
        try:
            while batch := self._waiting.pop(sources, ()):
                await self._answer(batch, sources)
        finally:
            del self._workers[sources]

    async def _positions(self, sources: Sources) -> Mapping[str, Lsn]:
        """Where the logs of these sources end. Raises what the source raises; ApiError for one of several sources."""
        try:
            lsns = await (self._head.advance_past() if sources is None else self._head.advance_past(sources))
        except UnknownHeadError as error:
            if error.source not in self._silent:
                log.warning("write checkpoints can't be created: %s", error)
            self._silent.add(error.source)
            fix = "send the request again; an app that writes to some sources only can name those, as ?source=NAME"
            # no name: tags may be those of customers
            raise ApiError("one of the sources does not answer", fix=fix, code=error.code) from error
        self._silent -= lsns.keys()
        return lsns

    async def _answer(self, batch: Sequence[_Waiting], sources: Sources) -> None:
        try:
            lsns = await self._positions(sources)
        except Exception as error:  # noqa: BLE001 - raised for each waiting request
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
        """Number all keys in one call to the store. If that fails, and not because the store is unavailable, number
        each key by itself, so that a bad key fails only its own request."""
        try:
            return await self._threads.promptly(partial(number, keys))
        except Exception as error:  # noqa: BLE001 - raised for each request of these keys
            if len(keys) == 1 or (isinstance(error, HeadwaterError) and error.kind is Kind.RETRY):
                return dict.fromkeys(keys, error)
        return {key: outcome for one in keys for key, outcome in (await self._number([one], number)).items()}

    async def _sweep(self) -> None:
        """Delete old numbers that clients chose, every SWEEP_SECONDS at most."""
        now = time.monotonic()
        if now < self._swept + SWEEP_SECONDS:
            return
        self._swept = now
        try:
            await self._threads.promptly(partial(self._reader.forget_write_requests, self._keep_requests))
        except Exception as error:  # noqa: BLE001 - a failed sweep must not fail requests
            log.warning("old checkpoint requests were not deleted, trying again: %s", error)


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
    """The handlers of the routes. `others`: there may be sources besides these, which nobody can ask."""

    def __init__(
        self,
        verifier: Verifier,
        writes: WriteCheckpointBatcher,
        hub: Hub,
        parsing: Parsing,
        sources: Sequence[str] = (),
        *,
        others: bool = False,
    ) -> None:
        self._parsing = parsing
        self._others = others
        self._sources = sources
        self._unknown = set[str]()  # names of sources that were logged
        self._verifier = verifier
        self._writes = writes
        self._hub = hub
        self._quota = user_quota("requests for write checkpoints in progress", MAX_WAITING_OF_USER)

    async def create(self, request: Request) -> Response:
        """`GET /write-checkpoint2.json?client_id=…`"""
        user = await self._admit(request)
        client_id = parse_client_id(request.query_params.get("client_id"))
        sources = self._asked(request)
        with self._quota.hold(user.user_id):
            checkpoint = await self._writes.create(write_key(user.user_id, client_id), sources=sources)
        return JSONResponse({"data": {"write_checkpoint": str(checkpoint)}})

    async def wait(self, request: Request) -> Response:
        """`GET /write-checkpoint.json`, which only very old clients ask for: waits until all that was committed at the
        source has been replicated."""
        user = await self._admit(request)
        key, sources = write_key(user.user_id, None), self._asked(request)
        with self._quota.hold(user.user_id), ReplicationWaiter(self._hub, key) as waiter:
            await waiter.wait_for(await self._writes.create(key, sources=sources))
        return JSONResponse({"data": {"checkpoint": str(self._hub.op_id)}})

    async def request(self, request: Request) -> Response:
        """`POST /sync/checkpoint-request`"""
        require_json(request)
        user = await self._admit(request)
        sources = self._asked(request)
        with self._quota.hold(user.user_id):
            body = await read_body(request, MAX_BODY)
            parsed = await self._parsing.parsed(user.user_id, body, parse_checkpoint_request)
            stored = await self._writes.create(write_key(user.user_id, parsed.client_id), parsed.id, sources)
        return JSONResponse({"data": {"checkpoint_request_id": str(stored)}})

    def _asked(self, request: Request) -> Sources:
        """The sources to wait for: those that the request names, or all. Raises HW_6007 for all, if not all are
        known."""
        named = self._named(request)
        if named is None and self._others and not self._hub.followed.issubset(self._sources):
            what = "not all sources are known, so nobody can say when a write to any has come back"
            raise ApiError(what, fix="correct replication.connections_from", code="HW_6007")
        return with_rows(named, self._sources, self._hub.followed)

    def _named(self, request: Request) -> Sources:
        """The sources that the request names. None if it names none, or an unknown one: apps that name it may be older
        or newer than the configuration."""
        in_path = request.path_params.get(IN_PATH, "")
        given = [*request.query_params.getlist("source"), in_path]
        names = [name.strip() for text in given for name in text.split(",") if name.strip()]
        known = {name: sources_named(name, self._sources) for name in names}
        unknown = [name[:100] for name, found in known.items() if not found and name[:100] not in self._unknown]
        for name in unknown[: _UNKNOWN_LOGGED - len(self._unknown)]:
            self._unknown.add(name)
            log.warning("an app waits for the source %r, which is not configured: it waits for all sources", name)
        return frozenset[str]().union(*known.values()) if known and all(known.values()) else None

    async def _admit(self, request: Request) -> Principal:
        user = await self._verifier.authorize(request.headers.get("authorization"))
        prove(request, user.user_id)
        self._hub.raise_unless_active()
        return user


def sources_named(name: str, sources: Iterable[str]) -> frozenset[str]:
    """Those of the sources that have this name, or this tag."""
    return frozenset(source for source in sources if name in {source, tag_of(source)})


def with_rows(named: Sources, sources: Iterable[str], followed: frozenset[str]) -> Sources:
    """Those of the named sources, by default all, that the store has rows of, if there are any: devices have nothing of
    another whose first snapshot is not complete, which may take hours."""
    wanted = frozenset(sources) if named is None else named
    found = wanted & followed
    return named if found == wanted or not found else found


WAIT_SECONDS = 50.0


class ReplicationWaiter:
    """Waits until a checkpoint contains a write checkpoint. The hub takes it for a stream (a Follower). Use it as a
    context, entered before the write checkpoint is created."""

    config_id = None

    def __init__(self, hub: Hub, write_key: str) -> None:
        self._hub = hub
        self.write_key = write_key
        self._newest = 0
        self._ended = False
        self._waiters = Waiters()

    def __enter__(self) -> ReplicationWaiter:
        self._hub.join(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._hub.leave(self)

    def notify(self, news: News) -> None:
        self._newest = max(self._newest, news.write_checkpoint or 0)
        self._waiters.wake()

    def end(self, reason: str) -> None:
        self._ended = True
        self._waiters.wake()

    async def wait_for(self, write_checkpoint: int) -> None:
        """Wait until a checkpoint contains this write checkpoint. Raises ApiError."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self._newest < write_checkpoint:
                    if self._ended:
                        raise ApiError("the service is shutting down", fix="send the request again", code="PSYNC_S2003")
                    await self._waiters.next()
        except TimeoutError:
            what = f"the source's changes were not replicated within {WAIT_SECONDS:.0f} s"
            raise ApiError(what, fix="try again later", code="HW_6006") from None
