"""What all admin routes share: their settings and errors, the check of the admin token, threads to run in, and how a
request becomes the call of a handler.

A handler is a function from typed data to typed data. The types are read from its annotations, so that the description
of the routes (`openapi`) always fits them."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar, get_type_hints

import msgspec
import orjson
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route, Router
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketClose

from headwater.api.errors import ApiError, UnsupportedMediaTypeError
from headwater.api.http.headers import with_headers
from headwater.api.http.requests import read_body
from headwater.api.quota import Quota
from headwater.api.studio.sessions import READING, Operators, ReadOnlyError
from headwater.api.studio.tokens import AdminToken, Operator, Role
from headwater.api.workers import Workers
from headwater.source.connect import SourceSettings
from headwater.source.upload.settings import UploadSettings
from headwater.storage.address import StoreAddress
from headwater.storage.contract.versions import NewerVersionError, NotProcessingError
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater.sync.request import RequestLimits, deeper_than

NOT_FOUND, TOO_LONG, TOO_LARGE, BUSY = "HW_6202", "HW_6203", "HW_6204", "HW_6205"
INVALID_RULES, NOTHING_SERVED, DEPLOY_CLOSED, DEPLOY_BUSY = "PSYNC_R0001", "PSYNC_S4104", "PSYNC_S4105", "PSYNC_S4106"
NEWER_VERSION, NOT_PROCESSING, NOT_SENT = NewerVersionError.code, NotProcessingError.code, "HW_8105"
"""Codes that answers of admin routes have."""


class InvalidAdminRequestError(ApiError):
    """The body or a parameter of an admin request has the wrong form."""

    code = "HW_6201"


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Settings of the admin routes. With `port`, only that port serves them. `from_file` says that the service config
    names the sync config. `limits` are those of devices. `workers` are the processes of the
    endpoint, if it has several. `upload` says where parked uploads are."""

    tokens: tuple[AdminToken, ...]
    storage: StoreAddress
    sources: tuple[SourceSettings, ...]
    port: int | None = None
    from_file: bool = False
    limits: RequestLimits = field(default_factory=RequestLimits)
    workers: Workers | None = None
    upload: UploadSettings | None = None

    @contextmanager
    def store(self) -> Iterator[StoreWriter]:
        """Open the store for one request. Blocking."""
        store = open_store(self.storage).open_writer()
        try:
            yield store
        finally:
            store.close()

    @property
    def source(self) -> SourceSettings:
        """The source. Raises HW_6202 when none is configured."""
        if not self.sources:
            raise ApiError("no source is configured", fix="add one in replication.connections", code=NOT_FOUND)
        return self.sources[0]

    def source_of(self, connection: str | None) -> SourceSettings:
        """The source with this name, or with this tag if it is the only one; the first if none is given. Raises
        HW_6202."""
        if connection is None:
            return self.source
        found = [each for each in self.sources if each.name == connection]
        found = found or [each for each in self.sources if each.tag == connection]
        if len(found) != 1:
            raise self._unknown(connection)
        return found[0]

    def check_names(self, names: Sequence[str]) -> None:
        """Raises HW_6202 for the first name that is neither a source's nor a tag, or when no source is configured."""
        sources = self.sources or (self.source,)
        for name in names:
            if not any(source.is_called(name) for source in sources):
                raise self._unknown(name)

    def _unknown(self, connection: str) -> ApiError:
        names = ", ".join(each.name for each in self.sources)
        return ApiError(f"there is no connection {connection}"[:200], fix=f"name one of: {names}", code=NOT_FOUND)


PREFIX = "/api"
"""Every path that begins with this is guarded, whether such a route exists or not."""


_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class AdminRoutes(Mount):
    """The admin routes. The operator is recognized before the rest of the path and the body are read, so that an
    unknown route, a wrong method and a route that somebody adds later are refused alike. Likewise, the role `view` may
    send to the paths in `reading` alone whatever is not a GET. With `port`, the routes exist only for requests to that
    port of the server."""

    def __init__(
        self,
        operators: Operators,
        routes: Sequence[BaseRoute],
        port: int | None = None,
        reading: Iterable[str] = (),
    ) -> None:
        self._operators = operators
        self._port = port
        self._reading = frozenset(reading)
        self._router = Router(routes=list(routes), redirect_slashes=False)
        super().__init__(PREFIX, app=self._guarded)

    @property
    def routes(self) -> list[BaseRoute]:
        """The guarded routes. Their paths are without PREFIX."""
        return self._router.routes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if self._port is not None and (scope.get("server") or (None, None))[1] != self._port:
            return Match.NONE, {}
        return super().matches(scope)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await WebSocketClose()(scope, receive, send)
            return
        operator = self._operators.authorize(scope)
        if operator.role is Role.VIEW and scope["method"] not in READING and scope["path"] not in self._reading:
            what = "your role is `view`, which changes nothing"
            raise ReadOnlyError(what, fix="ask an operator whose token has the role `edit`")
        scope["state"][_OPERATOR] = operator
        await self._router(scope, receive, with_headers(send, _HEADERS))


_OPERATOR = "operator"


def operator_of(request: Request) -> Operator:
    """Who sent a request that was admitted."""
    operator: Operator = getattr(request.state, _OPERATOR)
    return operator


RUNNING, WAITING = 10, 20
"""How many admin requests run at once, and how many may wait, as in the PowerSync service."""

LONG_RUNNING, LONG_WAITING = 2, 8
"""The same for requests that may read all rows: more at once would take CPU from devices."""

COMPILING, COMPILING_WAITING = 2, 20
"""The same for requests that do nothing but check a sync config: all CPU, for some seconds if it is huge."""

CHANGING, CHANGING_WAITING = 10, 20
"""The same for requests that change something: nobody who may only read can fill the places of those who end a stream,
or cancel a deploy."""

MOST_NESTING = 120
"""How deep a body may be nested: what a device may send, and what is around it here."""

MOST_SECONDS = 30.0
"""The time limit of a request that may read all rows."""

Result = TypeVar("Result")


class AdminThreads:
    """A pool of threads for admin requests, so that devices never wait behind them. Use it in one event loop."""

    def __init__(self, running: int = RUNNING, waiting: int = WAITING) -> None:
        self._pool = ThreadPoolExecutor(running, thread_name_prefix="headwater-admin")
        self._quota = Quota(running + waiting, None, _busy)

    async def run(self, job: Callable[[], Result]) -> Result:
        """Run a job in a thread. Raises HW_6205 when too many wait already."""
        self._quota.take()
        future = asyncio.get_running_loop().run_in_executor(self._pool, job)
        future.add_done_callback(self._done)  # the job goes on when its client disconnects
        return await asyncio.shield(future)

    def _done(self, future: asyncio.Future[Result]) -> None:
        self._quota.release()
        if not future.cancelled():
            future.exception()  # mark it as retrieved: the client may have disconnected

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _busy(*, of_key: bool) -> ApiError:
    return ApiError("too many admin requests are in progress or waiting", fix="try again in a moment", code=BUSY)


class Deadline:
    """A time limit for a long job, which has to call `check` now and then. `instead` is the command without a limit."""

    def __init__(self, instead: str, seconds: float = MOST_SECONDS) -> None:
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._instead = instead

    def check(self) -> None:
        """Raise TOO_LONG once the time is over."""
        if time.monotonic() > self._until:
            raise ApiError(
                f"the request takes longer than the {self._seconds:.0f} s allowed",
                fix=f"use `{self._instead}`",
                code=TOO_LONG,
            )

    def watch(self, _what: str, _pages: int) -> AbstractContextManager[Callable[[], None]]:
        """A context that gives `check`, for functions that report their progress."""
        return nullcontext(self.check)


MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of an answer."""

NoteChange = Callable[[Operator, str, object, object], None]
"""Notes that an operator changed something: by which path, argument and answer."""

YAML = ("application/yaml", "application/x-yaml", "text/yaml")


class Nothing(Struct, frozen=True):
    """An empty body or answer."""


@dataclass(frozen=True)
class AdminRoute:
    """One admin route.

    `answer` is the handler. It takes one argument or none, and the Operator if it has to know who asks. It runs in a
    thread unless it is a coroutine function, which may change nothing. Its argument is read from the JSON body of a
    POST, and from path and query of a GET. A request with unknown fields is refused. `errors` are the codes that it may
    raise, for the description. A `bare` answer is not wrapped in `data`, a `pretty` one is indented. With `yaml`, the
    body may also be YAML text, which becomes the field of that name.
    `events` is the type of each event's data, if the answer is a stream of events. A POST changes something, which the
    role `view` may not, unless it is declared as one that only `reads`. One that `compiles` does nothing beside that,
    and is fast, other than one that may be too long.
    """

    method: str
    path: str
    answer: Callable[..., object]
    errors: tuple[str, ...] = ()
    bare: bool = False
    pretty: bool = False
    yaml: str = ""
    events: type | None = None
    reads: bool = False
    compiles: bool = False

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method not in READING and not self.reads

    @cached_property
    def takes(self) -> type | None:
        """The type of the argument. That of a POST whose handler takes none is Nothing."""
        kinds = [kind for kind in self._kinds if kind is not Operator]
        return kinds[0] if kinds else Nothing if self.method == "POST" else None

    @cached_property
    def _kinds(self) -> tuple[type, ...]:
        """The types of all that the handler takes."""
        hints = get_type_hints(self.answer)
        return tuple(hints[name] for name in inspect.signature(self.answer).parameters)

    @cached_property
    def gives(self) -> type:
        found: type = get_type_hints(self.answer)["return"]
        return found

    def mounted(self, threads: AdminThreads, note: NoteChange) -> Route:
        """The Starlette route, for AdminRoutes. `note` is told of each change, in the thread that made it."""
        blocking = not inspect.iscoroutinefunction(self.answer)
        assert blocking or not self.changes, f"nobody would note what {self.path} changes"

        async def respond(request: Request) -> Response:
            argument = None if self.takes is None else await self._argument(request, self.takes)
            operator = operator_of(request)
            arguments = [operator if kind is Operator else argument for kind in self._kinds]

            def job() -> Response:
                answer = self.answer(*arguments)
                if self.changes:
                    note(operator, self.path, argument, answer)
                return self._response(answer)

            if blocking:
                return await threads.run(job)
            answer: Awaitable[object] = self.answer(*arguments)  # type: ignore[assignment]  # of a coroutine function
            return self._response(await answer)

        return Route(self.path.removeprefix(PREFIX), respond, methods=[self.method])

    async def _argument(self, request: Request, kind: type) -> object:
        if self.method == "GET":
            given: object = {**request.query_params, **request.path_params}
            return _converted(given, kind, strict=False)
        body = await read_body(request)
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self.yaml and media in YAML:
            return _converted({self.yaml: _text(body)}, kind, strict=True)
        if media not in {"", "application/json"}:
            raise UnsupportedMediaTypeError(f"unsupported content type {media!r}", fix="send application/json")
        return _converted(_parsed(body), kind, strict=True)

    def _response(self, answer: object) -> Response:
        if isinstance(answer, Response):
            return answer
        body = msgspec.json.encode(answer if self.bare else {"data": answer})
        if len(body) > MOST_BYTES:
            raise ApiError(
                f"the answer has {len(body):,} bytes, and at most {MOST_BYTES:,} are allowed",
                fix="ask for fewer rows",
                code=TOO_LARGE,
            )
        return Response(msgspec.json.format(body) if self.pretty else body, media_type="application/json")


def _parsed(body: bytes) -> object:
    try:
        found: object = orjson.loads(body or b"{}")
    except ValueError:
        raise InvalidAdminRequestError("the body is not valid JSON", fix="send a JSON object") from None
    if deeper_than(found, MOST_NESTING):
        what = f"the body is nested deeper than {MOST_NESTING} levels"
        raise InvalidAdminRequestError(what, fix="send a flatter object")
    return found


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise InvalidAdminRequestError("the body is not UTF-8 text", fix="send it as UTF-8") from None


def _converted(given: object, kind: type, *, strict: bool) -> object:
    try:
        found: object = msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise InvalidAdminRequestError(f"the request has the wrong form: {error}", fix=_SEE) from None
    unknown = sorted(_unread(given, msgspec.to_builtins(found)))
    if unknown:
        raise InvalidAdminRequestError(f"the request has unknown fields: {', '.join(unknown)}"[:200], fix=_SEE)
    return found


_SEE = "see openapi.json"


def _unread(given: object, read: object, path: str = "") -> Iterator[str]:
    """The fields that were given and not read, at any depth."""
    if isinstance(given, dict) and isinstance(read, dict):
        for name, value in given.items():
            if name in read:
                yield from _unread(value, read[name], f"{path}{name}.")
            else:
                yield f"{path}{name}"
    elif isinstance(given, list) and isinstance(read, list | tuple):
        for each, found in zip(given, read, strict=False):
            yield from _unread(each, found, path)
