"""The HTTP application: its routes, the probes of this process, and the objects that they share while it runs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp

from headwater.api.admin.route import AdminRoutes, AdminSettings
from headwater.api.admin.routes import Administration
from headwater.api.auth.claims import TrustedIssuer
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.revocations import Revocations
from headwater.api.auth.verify import Verifier
from headwater.api.checkpoints import IN_PATH, REQUESTS_KEPT, WriteCheckpointBatcher, WriteCheckpointRoute, with_rows
from headwater.api.error_answers import exception_handlers
from headwater.api.http.middleware import RequestMiddleware, address_quota, with_cors
from headwater.api.http.requests import RequestCounts
from headwater.api.limits import HttpLimits, StreamLimits
from headwater.api.parsing import Parsing
from headwater.api.refusals import Refusals
from headwater.api.rsocket.connection import RSocketEndpoint
from headwater.api.streams.cache import ChunkCache
from headwater.api.streams.endpoint import StreamEndpoint
from headwater.api.streams.hub import Hub
from headwater.api.streams.service import Streams
from headwater.api.streams.session import PlanCache
from headwater.api.streams.stale import StaleSources
from headwater.api.streams.stream import StreamContext
from headwater.api.streams.threads import StoreThreads
from headwater.api.streams.traffic import Traffic
from headwater.api.studio.routes import studio_routes
from headwater.api.studio.sessions import Operators
from headwater.api.tasks import Tasks
from headwater.api.upload.route import UploadRoute
from headwater.api.workers import Answers
from headwater.source.head import SourceHead
from headwater.source.upload.settings import UploadSettings
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import Revocation
from headwater.sync.request import BodyLimits, RequestLimits

if TYPE_CHECKING:
    from headwater.telemetry.traces import Traces  # needs packages that may be missing

UNREAD_SECONDS = 15.0
"""How long the store may be unreadable until the process counts as unable to serve."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Settings of the endpoint. A token's claim aud must be in `audience`, unless one of `issuers` made it. Limits are
    per process, except `requests` and `body`, which are per connection. `keep_requests` is in seconds. `probes` turns
    the probe routes on; without `admin` the admin API refuses every request, without `upload` there is no route for
    uploads. `sources` are the names of the sources, all of them unless `unknown_sources`."""

    keys: KeyRing
    audience: frozenset[str]
    sources: tuple[str, ...] = ("default",)
    unknown_sources: bool = False
    streams: StreamLimits = field(default_factory=StreamLimits)
    max_data_fetch_concurrency: int = 10
    requests: RequestLimits = field(default_factory=RequestLimits)
    body: BodyLimits = field(default_factory=BodyLimits)
    chunk_cache_bytes: int = 64 * 1024 * 1024
    keep_requests: float = REQUESTS_KEPT
    admin: AdminSettings | None = None
    probes: bool = True
    upload: UploadSettings | None = None
    http: HttpLimits = field(default_factory=HttpLimits)
    traces: Traces | None = None
    issuers: tuple[TrustedIssuer, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeState:
    """`started`: the store was read at least once. `ready`: a sync config is active, the store can be read, and the
    process is not shutting down. `touched_at`: when the store was last read, in seconds since 1970."""

    started: bool
    ready: bool
    touched_at: float


class Endpoint:
    """Creates the objects behind the routes, and starts and stops them in order."""

    def __init__(self, settings: ApiSettings, reader: StoreReader, head: SourceHead) -> None:
        self.settings = settings
        self.refusals = Refusals()
        self.requests = RequestCounts()
        self.traffic = Traffic(self.refusals, settings.traces)
        self._closing = False

        self._revocations = revocations = Revocations(complete=False)
        verifier = Verifier(settings.keys, settings.audience, revocations, issuers=settings.issuers)
        parsing, tasks = Parsing(), Tasks()
        threads = StoreThreads(ChunkCache(reader, settings.chunk_cache_bytes), settings.max_data_fetch_concurrency)
        self._hub = Hub(reader, threads, self.traffic, self._on_revocations, settings.sources)
        context = StreamContext(threads, self._hub, self.traffic, settings.streams.client_read_timeout_seconds)
        resolve = PlanCache(settings.requests, StaleSources(reader, settings.sources).find).resolve
        self.streams = Streams(
            context, resolve, settings.streams, settings.body, revocations, parsing, settings.sources
        )
        writes = WriteCheckpointBatcher(reader, threads, head, self._hub.refresh, settings.keep_requests)
        several = len(settings.sources) > 1

        async def checkpoint(key: str, sources: frozenset[str]) -> int:
            self._hub.raise_unless_active()
            written = with_rows(sources, settings.sources, self._hub.followed) if several else None
            return await writes.create(key, sources=written)

        self._upload = settings.upload and UploadRoute(verifier, settings.upload, self.refusals, parsing, checkpoint)
        self._operators = Operators(settings.admin.tokens if settings.admin else (), ended=revocations.ended)
        self._admin = settings.admin and Administration(
            settings.admin, self._operators, reader, self.streams.descriptions, settings.keys.unfetched
        )

        checkpoints = WriteCheckpointRoute(
            verifier, writes, self._hub, parsing, settings.sources, others=settings.unknown_sources
        )
        stream: ASGIApp = StreamEndpoint(self.streams, verifier, tasks)
        websocket: ASGIApp = RSocketEndpoint(self.streams, verifier, self.refusals, tasks)

        def routes(prefix: str) -> Iterator[BaseRoute]:
            yield Route(f"{prefix}/sync/stream", stream, methods=["POST"])
            yield _only_get(f"{prefix}/write-checkpoint2.json", checkpoints.create)
            yield _only_get(f"{prefix}/write-checkpoint.json", checkpoints.wait)
            yield Route(f"{prefix}/sync/checkpoint-request", checkpoints.request, methods=["POST"])
            if self._upload:
                yield from self._upload.routes(prefix)

        self.device_routes: Sequence[BaseRoute] = (
            *routes(""),
            *routes(f"/sources/{{{IN_PATH}:path}}"),
        )
        self.websocket_route = WebSocketRoute("/{path:path}", websocket)  # clients name the path inside the protocol

        self._closers: Sequence[Callable[[], Awaitable[None] | None]] = (
            tasks.close,
            writes.close,
            self._hub.close,
            head.close,
            settings.keys.close,
            *([self._upload.close] if self._upload else ()),
            threads.close,
            parsing.close,
            *([self._admin.close] if self._admin else ()),
        )

    @property
    def operator_routes(self) -> Sequence[BaseRoute]:
        """The admin routes, which refuse everything without an admin API, and the studio's."""
        if not self._admin:
            return (AdminRoutes(self._operators, ()),)
        admin = self._admin

        async def end(session: str) -> None:
            revocation = await anyio.to_thread.run_sync(admin.end_session, session)
            self._revocations.add(revocation)  # here, and in the other processes when they look at the store

        return (admin.guarded, *studio_routes(self._operators, end))

    @property
    def answers(self) -> Answers:
        """What other processes of the endpoint may ask this one."""
        return self._admin.answers if self._admin else {}

    def unknown_columns(self) -> Mapping[tuple[str, str, str], int]:
        """Columns in uploads that the source does not have, with how often they came. May be called in any thread."""
        return self._upload.unknown_columns() if self._upload else {}

    def _on_revocations(self, revocations: Sequence[Revocation]) -> None:
        self.streams.revoke(revocations)  # which are created after the hub that calls this

    def health(self) -> ProbeState:
        read = self._hub.last_read
        can_read = read is not None and time.monotonic() - read.monotonic < UNREAD_SECONDS
        return ProbeState(
            started=read is not None,
            ready=self._hub.active and can_read and not self._closing,
            touched_at=time.time() if read is None else read.wall,
        )

    def begin_shutdown(self) -> None:
        """Refuse new streams, and end the open ones normally over `drain_seconds`. Call it in the event loop."""
        if self._closing:
            return
        self._closing = True
        self.streams.begin_shutdown(self.settings.http.drain_seconds)
        if self._admin:
            self._admin.begin_shutdown()

    @asynccontextmanager
    async def running(self, _: Starlette) -> AsyncIterator[None]:
        await self._hub.start()
        self.settings.keys.start()
        if self._admin:
            self._admin.start()
        try:
            yield
        finally:
            self.begin_shutdown()
            for close in self._closers:
                closing = close()
                if closing is not None:
                    await closing


class ApiApp(Starlette):
    """The application, and what serves and measures it. `operators` answers at their port if they have one of their
    own, where no routes of devices exist; otherwise it is this application."""

    def __init__(self, endpoint: Endpoint, extra_routes: Sequence[BaseRoute]) -> None:
        self.endpoint = endpoint
        settings, handlers = endpoint.settings, exception_handlers(endpoint.refusals)
        probes = _probe_routes(endpoint.health) if settings.probes else ()
        own_port = settings.admin is not None and settings.admin.port is not None
        operator_routes = endpoint.operator_routes
        super().__init__(
            routes=[
                *endpoint.device_routes,
                *probes,
                *(() if own_port else operator_routes),
                *extra_routes,
                endpoint.websocket_route,
            ],
            exception_handlers=handlers,
            lifespan=endpoint.running,
        )
        self.operators: Starlette = self
        if own_port:
            routes = [*probes, *operator_routes, *extra_routes]
            self.operators = Starlette(routes=routes, exception_handlers=handlers)
        quota = address_quota(settings.http)
        for app in {self, self.operators}:
            endpoint.requests.expect(route.path for route in app.routes if isinstance(route, Route))
            app.router.redirect_slashes = False  # a redirect would hide a wrong URL from the client's developer
            limited = RequestMiddleware(app.build_middleware_stack(), quota, endpoint.refusals, endpoint.requests)
            app.middleware_stack = with_cors(limited)


def create_app(
    settings: ApiSettings, reader: StoreReader, head: SourceHead, extra_routes: Sequence[BaseRoute] = ()
) -> ApiApp:
    """Create the application, which closes `head` at its end, and not the reader. `extra_routes` are matched last."""
    return ApiApp(Endpoint(settings, reader, head), extra_routes)


def _only_get(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
    """A GET route without HEAD, which Starlette would add: the handler writes to the store."""
    route = Route(path, answer, methods=["GET"])
    route.methods = {"GET"}
    return route


def _probe_routes(health: Callable[[], ProbeState]) -> list[BaseRoute]:
    """The routes of the startup, readiness and liveness probes, which answer 200 or 400."""

    def route(name: str, good: Callable[[ProbeState], bool]) -> Route:
        async def probe(_: Request) -> Response:
            state = health()
            touched = datetime.fromtimestamp(state.touched_at, UTC).isoformat(timespec="milliseconds")
            body = {"ready": state.ready, "started": state.started, "touched_at": touched.replace("+00:00", "Z")}
            return JSONResponse(body, 200 if good(state) else 400)

        return Route(f"/probes/{name}", probe)

    return [
        route("startup", lambda state: state.started),
        route("readiness", lambda state: state.ready),
        route("liveness", lambda _: True),
    ]
