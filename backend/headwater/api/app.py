"""The HTTP application: its routes, and the objects that they share while it runs."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route, WebSocketRoute
from starlette.types import ASGIApp, Scope

from headwater.api.admin.clients import CLIENTS
from headwater.api.admin.guard import AdminRoutes
from headwater.api.admin.routes import Administration
from headwater.api.admin.settings import AdminSettings
from headwater.api.auth.claims import TrustedIssuer
from headwater.api.auth.keys import KeySource
from headwater.api.auth.revocations import Revocations
from headwater.api.auth.verify import Verifier
from headwater.api.checkpoints import REQUESTS_KEPT, Head, WriteCheckpointRoute, WriteCheckpoints
from headwater.api.error_handlers import ErrorHandlers
from headwater.api.http.front import Front
from headwater.api.http.limits import HttpLimits
from headwater.api.http.requests import Requests
from headwater.api.parsing import Parsing
from headwater.api.probes import Health, probe_routes
from headwater.api.refusals import Refusals
from headwater.api.rsocket.endpoint import RSocketEndpoint
from headwater.api.streams.endpoint import StreamEndpoint
from headwater.api.streams.hub import Hub
from headwater.api.streams.service import TOKENS_KEPT, StreamLimits, Streams, of_tokens
from headwater.api.streams.session import PlanCache, RequestLimits
from headwater.api.streams.stream import StreamContext
from headwater.api.streams.threads import StoreThreads
from headwater.api.streams.traffic import DeviceTraces, Traffic
from headwater.api.tasks import Tasks
from headwater.api.upload.route import UploadRoute
from headwater.api.workers import Answers
from headwater.source.upload.settings import UploadSettings
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.revocations import Revocation
from headwater.storage.shared.cache import CachedReader
from headwater.sync.request import BodyLimits

UNREAD_SECONDS = 15.0
"""How long the store may be unreadable until the process counts as unable to serve."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Settings of the endpoint. A token's claim aud must be in `audience`, unless one of `issuers` made it. Limits are
    per process, except `requests` and `body`, which are per connection. `keep_requests` is in seconds. `probes` turns
    the probe routes on; without `admin` the admin API refuses every request, without `upload` there is no route for
    uploads. `sources` are the tags of the sources."""

    keys: KeySource
    audience: frozenset[str]
    sources: tuple[str, ...] = ("default",)
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
    traces: DeviceTraces | None = None
    issuers: tuple[TrustedIssuer, ...] = ()


class Endpoint:
    """Creates the objects behind the routes, and starts and stops them in order."""

    def __init__(self, settings: ApiSettings, reader: StoreReader, head: Head) -> None:
        self._keys = settings.keys
        self.revocations = Revocations(complete=False)
        verifier = Verifier(settings.keys, settings.audience, self.revocations, issuers=settings.issuers)
        self._head = head
        self._drain_seconds = settings.http.drain_seconds
        cached = CachedReader(reader, settings.chunk_cache_bytes)
        self._threads = StoreThreads(cached, settings.max_data_fetch_concurrency)
        self._parsing = Parsing()
        self._closing = False
        self.refusals = Refusals()
        self.requests = Requests()
        self.traffic = Traffic(self.refusals, settings.traces)
        self.hub = Hub(reader, self._threads, self.traffic, self._revoked, settings.sources)
        self.writes = WriteCheckpoints(reader, self._threads, head, self.hub.look, settings.keep_requests)
        context = StreamContext(self._threads, self.hub, self.traffic, settings.streams.stalled_seconds)
        self.streams = Streams(
            context,
            PlanCache(settings.requests).resolve,
            settings.streams,
            settings.body,
            self.revocations,
            self._parsing,
        )
        self._tasks = Tasks()
        self.stream = StreamEndpoint(self.streams, verifier, self._tasks)
        self.websocket = RSocketEndpoint(self.streams, verifier, self.refusals, self._tasks)
        self._admin = settings.admin and Administration(
            settings.admin, reader, self.streams.descriptions, settings.keys.unfetched
        )
        self.guarded = self._admin.guarded if self._admin else AdminRoutes((), ())
        self.answers: Answers = {CLIENTS: self._admin.own_clients} if self._admin else {}
        self.write_checkpoint = WriteCheckpointRoute(verifier, self.writes, self.hub, self._parsing)
        uploads = settings.upload
        self.uploads = () if uploads is None else (UploadRoute(verifier, uploads, self.refusals, self._parsing),)

    def health(self) -> Health:
        looked_at = self.hub.looked_at
        unread = time.monotonic() - self.hub.looked_at_monotonic  # the other clock may be set
        can_read = looked_at is not None and unread < UNREAD_SECONDS
        return Health(
            started=looked_at is not None,
            ready=self.hub.active and can_read and not self._closing,
            touched_at=looked_at or time.time(),
        )

    def _revoked(self, revocations: Sequence[Revocation]) -> None:
        """Refuse the revoked tokens from their next use on, and end the streams that revocations are about."""
        self.revocations.add(*of_tokens(revocations))
        self.revocations.forget(time.time(), TOKENS_KEPT)
        self.revocations.known()
        self.streams.revoke(revocations)

    def begin_shutdown(self) -> None:
        """Refuse new streams, and end the open ones normally over `drain_seconds`. Call it in the event loop."""
        if self._closing:
            return
        self._closing = True
        self.streams.begin_shutdown(self._drain_seconds)
        if self._admin:
            self._admin.begin_shutdown()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self.hub.start()
        self._keys.start()
        try:
            yield
        finally:
            self.begin_shutdown()
            await self._tasks.close()
            await self.writes.close()
            await self.hub.close()
            await self._head.close()
            await self._keys.close()
            for upload in self.uploads:
                await upload.close()
            self._threads.close()
            self._parsing.close()
            if self._admin:
                self._admin.close()


def create_app(
    settings: ApiSettings, reader: StoreReader, head: Head, extra_routes: Sequence[BaseRoute] = ()
) -> Starlette:
    """Create the application. It closes `head` when it ends; the caller closes the reader. `extra_routes` are matched
    last."""
    endpoint = Endpoint(settings, reader, head)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with endpoint.running():
            yield

    stream: ASGIApp = endpoint.stream
    websocket: ASGIApp = endpoint.websocket
    admin_port = settings.admin.port if settings.admin else None
    of_devices = [
        Route("/sync/stream", stream, methods=["POST"]),
        _only_get("/write-checkpoint2.json", endpoint.write_checkpoint.create),
        _only_get("/write-checkpoint.json", endpoint.write_checkpoint.wait),
        Route("/sync/checkpoint-request", endpoint.write_checkpoint.request, methods=["POST"]),
        *(route for upload in endpoint.uploads for route in upload.routes),
    ]
    app = Starlette(
        routes=[
            *(_not_at(admin_port, route) for route in of_devices),
            *(probe_routes(endpoint.health, lambda: True) if settings.probes else ()),
            endpoint.guarded,
            *extra_routes,
            _not_at(admin_port, WebSocketRoute("/{path:path}", websocket)),
        ],
        exception_handlers=ErrorHandlers(endpoint.refusals).hooks,
        lifespan=lifespan,
    )
    endpoint.requests.expect(route.path for route in app.routes if isinstance(route, Route))
    app.router.redirect_slashes = False  # a redirect would hide a wrong URL from the client's developer
    app.middleware_stack = Front(app.build_middleware_stack(), settings.http, endpoint.refusals, endpoint.requests)
    app.state.http_limits = settings.http
    app.state.stalled_seconds = settings.streams.stalled_seconds
    app.state.admin_port = admin_port
    app.state.refusals = endpoint.refusals
    app.state.traffic = endpoint.traffic
    app.state.requests = endpoint.requests
    app.state.unfetched = settings.keys.unfetched
    app.state.begin_shutdown = endpoint.begin_shutdown
    app.state.open_streams = lambda: endpoint.streams.count
    app.state.refused = endpoint.refusals.counts
    app.state.unknown_columns = endpoint.uploads[0].unknown_columns if endpoint.uploads else dict
    app.state.answers = endpoint.answers
    return app


def _not_at(port: int | None, route: BaseRoute) -> BaseRoute:
    """A route of devices, which does not exist at the port of operators."""
    matches = route.matches

    def elsewhere(scope: Scope) -> tuple[Match, Scope]:
        is_there = port is not None and (scope.get("server") or (None, None))[1] == port
        return (Match.NONE, {}) if is_there else matches(scope)

    route.matches = elsewhere  # type: ignore[method-assign]
    return route


def _only_get(path: str, answer: Callable[[Request], Awaitable[Response]]) -> Route:
    """A GET route without HEAD, which Starlette would add: the handler writes to the store."""
    route = Route(path, answer, methods=["GET"])
    route.methods = {"GET"}
    return route
