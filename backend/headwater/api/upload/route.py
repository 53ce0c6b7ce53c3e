"""`POST /upload`: its limits, and its handler."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar
from weakref import WeakValueDictionary

from cachetools import TTLCache
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headwater.api.auth.errors import AuthError
from headwater.api.auth.verify import Principal, Verifier
from headwater.api.error_answers import error_response
from headwater.api.errors import ApiError
from headwater.api.http.requests import read_body, require_json
from headwater.api.parsing import LARGE, Parsing
from headwater.api.quota import Quota
from headwater.api.refusals import Refusals, facts_of, prove, proven
from headwater.api.upload.messages import (
    InvalidUploadError,
    UploadRequest,
    parse_upload,
    read_client_id,
    refusal_json,
    waiting_json,
)
from headwater.codes import Kind
from headwater.errors import HeadwaterError
from headwater.source.upload.entries import ClientTransaction, Device
from headwater.source.upload.errors import Reason, UploadRefusedError
from headwater.source.upload.routing import RoutedUploads, letter_name
from headwater.source.upload.settings import WAIT_SECONDS, UploadSettings
from headwater.sync.request import write_key

log = logging.getLogger(__name__)


class TooManyUploadsError(ApiError):
    """Too many uploads are in progress, or too many bytes of them, in all or of this user."""

    code = "HW_6102"
    retry_after: ClassVar[int] = 2


def _quota(what: str, most: int, most_per_user: int) -> Quota:
    def refuse(*, of_key: bool) -> TooManyUploadsError:
        if of_key:
            return TooManyUploadsError(f"too many {what} of this user are in progress", fix="send them one by one")
        return TooManyUploadsError(f"too many {what} are in progress", fix="send it again in a moment")

    return Quota(most, most_per_user, refuse)


class UploadLimits:
    """Counts the uploads in progress, and the bytes of their bodies. The first `uncounted` bytes of each body are not
    counted, so that large bodies leave room for small ones. Not thread-safe: use it in one event loop."""

    def __init__(
        self, most: int, most_per_user: int, most_bytes: int, most_bytes_per_user: int, uncounted: int = 0
    ) -> None:
        self._uncounted = uncounted
        self._uploads = _quota("uploads", most, most_per_user)
        self._bytes = _quota("bytes of uploads", most_bytes, most_bytes_per_user)

    @contextmanager
    def room_for(self, user_id: str) -> Iterator[Callable[[int], None]]:
        """Count one upload of the user while the context is open. The context gives what to call for bytes of its body
        as they arrive. Both raise TooManyUploadsError."""
        size = held = 0

        def hold(count: int) -> None:
            nonlocal size, held
            size += count
            more = max(0, size - self._uncounted) - held
            self._bytes.take(user_id, more)
            held += more

        with self._uploads.hold(user_id):
            try:
                yield hold
            finally:
                self._bytes.release(user_id, held)


MOST_BODIES, MOST_BODIES_OF_USER = 8, 2
"""How many bodies of the largest size may be held at once, or as many bytes of other large ones, in all and of a
user."""

HUGE = 1024 * 1024
"""Bytes of a body of which few are held parsed at once: parsed, it takes up to forty times its size in memory."""

MOST_HUGE = 2
"""How many such bodies are parsed or applied at once, each of another user."""

MOST_TOLD = 100
"""How many refused transactions of a device are listed: the newest."""

Done = TypeVar("Done")


MOST_WAITING = 10_000
"""How many devices are remembered that wait for somebody to mend something."""


class UploadWaitsError(ApiError):
    """The upload waits until the app's server or its database is mended. What was applied of it is recorded, so the
    same can be sent again."""

    code = "HW_6131"
    retry_after: ClassVar[int] = WAIT_SECONDS


class UploadRoute:
    """Applies the transactions of a request in order, each by itself. `checkpoint` creates a write checkpoint of a
    device's key for these sources."""

    def __init__(
        self,
        verifier: Verifier,
        settings: UploadSettings,
        refusals: Refusals,
        parsing: Parsing,
        checkpoint: Callable[[str, frozenset[str]], Awaitable[int]] | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._verifier = verifier
        self._parsing = parsing
        self._refusals = refusals
        self._settings = settings
        self._uploads = RoutedUploads(settings)
        connections = settings.max_connections * len(self._uploads.by_source)
        self.unknown_columns = self._uploads.unknown_columns
        self._waiting: TTLCache[bytes, tuple[bytes, _Wait]] = TTLCache(MOST_WAITING, settings.wait_seconds)
        self._working = asyncio.Semaphore(connections)
        self._parsing_large = _Turns(LARGE, 1)
        self._holding_huge = _Turns(HUGE, MOST_HUGE)
        self._limits = UploadLimits(
            connections + settings.max_waiting,
            settings.max_per_user,
            MOST_BODIES * settings.max_body_bytes,
            MOST_BODIES_OF_USER * settings.max_body_bytes,
            uncounted=LARGE,
        )

    def routes(self, prefix: str) -> Sequence[Route]:
        """The routes below a path."""
        return (
            Route(f"{prefix}/upload", self.answer, methods=["POST"]),
            Route(f"{prefix}/upload/refused", self.refused, methods=["GET"]),
        )

    async def close(self) -> None:
        await self._uploads.close()

    async def answer(self, request: Request) -> Response:
        require_json(request)
        user = await self._verifier.authorize(request.headers.get("authorization"))
        prove(request, user.user_id)
        with self._limits.room_for(user.user_id) as hold:
            body = await read_body(request, self._settings.max_body_bytes, hold)
            async with self._parsed(request, user.user_id, body) as upload:
                device = Device(user.user_id, upload.client_id, _claims(user), upload.app_version)
                answers: list[dict[str, object]] = []
                sources = frozenset[str]()
                if (wait := self._awaited(device, upload.transactions)) is not None:
                    return error_response(self._waits(wait), {"transactions": answers})
                for transaction in upload.transactions:
                    await _stay(request)
                    try:
                        self._verifier.recheck(user)
                    except AuthError as error:
                        return self._ended(request, error, answers)
                    try:
                        answer, written = await self._take(device, transaction)
                    except UploadWaitsError as error:  # which is counted and logged by its cause
                        return error_response(error, {"transactions": answers})
                    answers.append(answer)
                    sources |= written
            beside = await self._write_checkpoint(device, sources) if upload.write_checkpoint else {}
        return JSONResponse({"transactions": answers, **beside})

    async def refused(self, request: Request) -> Response:
        """Which transactions of a device still wait as dead letters: nobody has retried or discarded them. Not
        `complete` while a source does not answer that may have more."""
        user = await self._verifier.authorize(request.headers.get("authorization"))
        prove(request, user.user_id)
        device = Device(user.user_id, read_client_id(request.query_params.get("client_id")), _claims(user))
        with self._limits.room_for(user.user_id):
            async with self._working:
                told = await self._or_later(device, self._uploads.waiting(device, MOST_TOLD))
        for error in told.silent:
            self._refusals.note(error.code, device.sub, "dead letters not listed", {"reason": str(error)})
        named = [waiting_json(letter_name(self._settings, source, each.letter), each) for source, each in told.letters]
        return JSONResponse({"refused": named, "complete": not told.silent})

    async def _write_checkpoint(self, device: Device, sources: frozenset[str]) -> dict[str, object]:
        """The key of the answer with the write checkpoint for these sources. Without one, the device asks for it."""
        if self._checkpoint is None or not sources:
            return {}
        try:
            return {"write_checkpoint": str(await self._checkpoint(write_key(device.sub, device.client_id), sources))}
        except HeadwaterError as error:
            log.warning("an upload was applied, and is answered without its write checkpoint: %s", error)
            return {}

    def _ended(self, request: Request, error: AuthError, answers: Sequence[Mapping[str, object]]) -> Response:
        """The answer to an upload whose token is no longer valid, with what happened to the transactions so far."""
        response = error_response(error, {"transactions": answers})
        facts = {"status": response.status_code, "reason": error.what, **facts_of(request)}
        self._refusals.note(error.code, proven(request), "upload ended", facts)
        return response

    @asynccontextmanager
    async def _parsed(self, request: Request, user_id: str, body: bytes) -> AsyncIterator[UploadRequest]:
        """Parse the body, and keep a place among those that work while the context is open. Large ones are parsed one
        at a time; then only huge ones wait for each other, since what they hold is bounded by their number."""
        async with self._holding_huge.of(user_id, len(body)), AsyncExitStack() as place:
            async with self._parsing_large.of(user_id, len(body)):
                await place.enter_async_context(self._working)
                await _stay(request)
                upload = await self._parsing.parsed(user_id, body, parse_upload)
            yield upload

    async def _take(self, device: Device, transaction: ClientTransaction) -> tuple[dict[str, object], frozenset[str]]:
        """Apply one transaction and return its part of the answer, and the sources it was written to. Raises HW_6103 or
        UploadWaitsError when the device should send it again."""
        routed = await self._or_later(device, self._uploads.take(device, transaction), transaction)
        outcome = routed.outcome
        answer: dict[str, object] = {"last_op_id": transaction.last_op, "outcome": outcome.taken.value}
        if outcome.reason is not None and outcome.letter is not None:
            letter = letter_name(self._settings, routed.source, outcome.letter)
            facts = _facts(device, transaction, letter, outcome.reason)
            self._refusals.note(outcome.reason.code, device.sub, "upload parked", facts)
            answer |= {"dead_letter": letter, "error": refusal_json(outcome.reason, transaction)}
        return answer, routed.sources

    async def _or_later(
        self, device: Device, work: Awaitable[Done], transaction: ClientTransaction | None = None
    ) -> Done:
        try:
            return await work
        except HeadwaterError as error:
            # the inner error is for the log only
            if error.kind is not Kind.RETRY:
                cause = f"{error.where} {error.sqlstate if isinstance(error, UploadRefusedError) else ''}"
                wait = _Wait(error.code, cause, {"reason": str(error), "app_version": device.app_version or None})
                if transaction is not None:
                    self._waiting[device.key] = _identity(transaction), wait
                raise self._waits(wait) from error
            self._refusals.note(error.code, device.sub, "upload put off", {"reason": str(error)})
            raise ApiError(
                "the source can't apply the upload now", fix="send the same again", code="HW_6103"
            ) from error

    def _awaited(self, device: Device, transactions: Sequence[ClientTransaction]) -> _Wait | None:
        """What one of these was lately found to wait for. Those before it were dealt with then, in the same order. A
        device that comes back before it was due is answered without the source: so many that wait do not keep its
        connections busy."""
        identity, wait = self._waiting.get(device.key, (b"", None))
        return wait if any(_identity(each) == identity for each in transactions) else None

    def _waits(self, wait: _Wait) -> UploadWaitsError:
        self._refusals.note(wait.code, None, "uploads wait", wait.facts, logging.ERROR, wait.cause)
        what = f"the app's server has to be mended before this can be applied ({wait.code})"
        return UploadWaitsError(what, fix="send the same again later")


@dataclass(frozen=True, slots=True)
class _Wait:
    """What a device waits for that somebody has to mend. The log has a line for each code and cause."""

    code: str
    cause: str
    facts: Mapping[str, object]


def _identity(transaction: ClientTransaction) -> bytes:
    return b"%d %d %b" % (transaction.first_op, transaction.last_op, transaction.digest)


class _Turns:
    """Lets in `most` bodies of more than `size` bytes at once, each of another user, and any number of smaller ones."""

    def __init__(self, size: int, most: int) -> None:
        self._size = size
        self._places = asyncio.Semaphore(most)
        self._of_user: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, user_id: str, size: int) -> AsyncIterator[None]:
        if size <= self._size:
            yield
            return
        async with self._of_user.setdefault(user_id, asyncio.Lock()), self._places:
            yield


async def _stay(request: Request) -> None:
    """Raise ClientDisconnect if nobody waits for the answer: the device sends the rest again, and finds room."""
    if await request.is_disconnected():
        raise ClientDisconnect


def _claims(user: Principal) -> str:
    """The token's claims as ASCII JSON, which every database encoding can hold. Raises InvalidUploadError for NaN and
    infinity, which JSON lacks."""
    try:
        return json.dumps(user.claims, allow_nan=False)
    except ValueError:
        what = "the token has a claim that is NaN or infinite"
        raise InvalidUploadError(what, "claims", "issue tokens without such numbers") from None


def _facts(device: Device, transaction: ClientTransaction, letter: int | str, reason: Reason) -> dict[str, object]:
    """Fields for the log. None of them contains a value of the row."""
    return {
        "client_id": device.client_id,
        "dead_letter": letter,
        "first_op": transaction.first_op,
        "last_op": transaction.last_op,
        "op_id": reason.op_id,
        "sqlstate": reason.sqlstate or None,
    }
