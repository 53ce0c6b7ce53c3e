"""The table of all admin routes: path, handler and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from headwater.api.admin.changes import ChangeLog
from headwater.api.admin.clients import CLIENTS, ClientsHandler
from headwater.api.admin.completion import CompletionHandler
from headwater.api.admin.openapi import document
from headwater.api.admin.powersync import powersync_routes
from headwater.api.admin.route import (
    BUSY,
    CHANGING,
    CHANGING_WAITING,
    COMPILING,
    COMPILING_WAITING,
    INVALID_RULES,
    LONG_RUNNING,
    LONG_WAITING,
    NEWER_VERSION,
    NOT_FOUND,
    NOT_PROCESSING,
    NOT_SENT,
    NOTHING_SERVED,
    TOO_LARGE,
    TOO_LONG,
    AdminRoute,
    AdminRoutes,
    AdminSettings,
    AdminThreads,
)
from headwater.api.admin.rules import ExplainHandler, RulesHandler
from headwater.api.admin.service.routes import ServiceRoutes
from headwater.api.admin.status import ProgressHandler, ProgressResponse, StatusHandler
from headwater.api.admin.trial import TrialHandler
from headwater.api.admin.versions import VersionsHandler
from headwater.api.admin.warm import WarmSchema
from headwater.api.auth.keys import Unfetched
from headwater.api.streams.stream import OpenStream
from headwater.api.studio.sessions import SESSION_SECONDS, Operators
from headwater.api.studio.tokens import Operator, Role
from headwater.api.workers import Answers
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import Revocation, RevokedKind

OURS = "/api/headwater/v1"
_LONG = (TOO_LONG, TOO_LARGE)


class OperatorResponse(Struct, frozen=True):
    """Who asks: name and role of the token or the session, and when the session ends, in seconds since 1970."""

    name: str
    role: Role
    until: float | None


async def _operator(operator: Operator) -> OperatorResponse:
    """Tell who asks."""
    return OperatorResponse(operator.name, operator.role, operator.until)


class Administration:
    """Creates the admin routes and their handlers, and shuts them down."""

    def __init__(
        self,
        settings: AdminSettings,
        operators: Operators,
        reader: StoreReader,
        connected: Callable[[], Sequence[OpenStream]],
        unfetched: Callable[[], Sequence[Unfetched]],
    ) -> None:
        self._settings = settings
        self._threads = AdminThreads()
        self._long = AdminThreads(LONG_RUNNING, LONG_WAITING)
        self._compiling = AdminThreads(COMPILING, COMPILING_WAITING)
        self._changing = AdminThreads(CHANGING, CHANGING_WAITING)
        self._clients = clients = ClientsHandler(settings, reader, connected)
        status = StatusHandler(settings, reader, unfetched)
        self._progress = ProgressHandler(status, self._threads)
        changes, trial = ChangeLog(settings), TrialHandler(settings, clients.users)
        self._warm = WarmSchema(settings.sources)
        self._service = ServiceRoutes(settings, reader, lambda: len(connected()))
        versions, explain = VersionsHandler(settings), ExplainHandler(settings, reader)
        rules, completion = RulesHandler(settings, self._warm), CompletionHandler(settings, self._warm)
        self.routes = (
            AdminRoute("GET", "/api/admin/v1/status", status.status),
            AdminRoute("GET", f"{OURS}/progress", self._progress.events, (BUSY,), events=ProgressResponse),
            AdminRoute("GET", f"{OURS}/operator", _operator),
            AdminRoute("GET", f"{OURS}/clients", clients.clients),
            AdminRoute("POST", f"{OURS}/terminate", clients.terminate),
            AdminRoute("POST", f"{OURS}/revoke", clients.revoke),
            AdminRoute("GET", f"{OURS}/revocations", clients.revocations),
            AdminRoute("GET", f"{OURS}/versions", versions.versions),
            AdminRoute("GET", f"{OURS}/versions/{{id}}", versions.text, (NOT_FOUND,)),
            AdminRoute("POST", f"{OURS}/validate", rules.validate, yaml="content", reads=True, compiles=True),
            AdminRoute(
                "POST", f"{OURS}/diff", rules.diff, (INVALID_RULES, NOT_FOUND, *_LONG), yaml="content", reads=True
            ),
            AdminRoute("POST", f"{OURS}/preview", rules.preview, (INVALID_RULES, NOT_FOUND, *_LONG), reads=True),
            AdminRoute(
                "POST", f"{OURS}/deploy", versions.deploy, (INVALID_RULES, NOT_SENT, NEWER_VERSION), yaml="content"
            ),
            AdminRoute("POST", f"{OURS}/deploy/cancel", versions.cancel, (NOT_FOUND, NOT_PROCESSING)),
            AdminRoute("POST", f"{OURS}/rollback", versions.roll_back, (INVALID_RULES, NOT_FOUND, NEWER_VERSION)),
            AdminRoute("GET", f"{OURS}/changes", changes.changes),
            AdminRoute("POST", f"{OURS}/cost", trial.cost, (INVALID_RULES, *_LONG), reads=True),
            AdminRoute("GET", f"{OURS}/cases", trial.cases),
            AdminRoute("POST", f"{OURS}/cases", trial.store_case),
            AdminRoute("POST", f"{OURS}/cases/delete", trial.delete_case, (NOT_FOUND,)),
            AdminRoute("POST", f"{OURS}/cases/run", trial.run_cases, (INVALID_RULES, NOT_FOUND, *_LONG), reads=True),
            AdminRoute("POST", f"{OURS}/compare", trial.compare, (INVALID_RULES, NOT_FOUND, *_LONG), reads=True),
            AdminRoute("POST", f"{OURS}/explain/user", explain.user, (NOTHING_SERVED, *_LONG), reads=True),
            AdminRoute("POST", f"{OURS}/explain/row", explain.row, (NOTHING_SERVED, NOT_FOUND, *_LONG), reads=True),
            AdminRoute("GET", f"{OURS}/completion", completion.completion),
            AdminRoute("GET", f"{OURS}/client-schema", completion.client_schema, (NOTHING_SERVED,)),
            AdminRoute("GET", f"{OURS}/config-schema", completion.config_schema),
            AdminRoute("GET", f"{OURS}/openapi.json", self.document, bare=True),
            *self._service.routes(OURS),
            *powersync_routes(settings, reader),
        )
        mounted = [route.mounted(self._threads_of(route), changes.note) for route in self.routes]
        reading = [route.path for route in self.routes if route.reads]
        self.guarded = AdminRoutes(operators, mounted, settings.port, reading)

    def _threads_of(self, route: AdminRoute) -> AdminThreads:
        if route.changes:
            return self._changing
        if TOO_LONG in route.errors:
            return self._long
        return self._compiling if route.compiles else self._threads

    def document(self) -> Mapping[str, object]:
        """Describe all admin routes, as an OpenAPI document."""
        return document(self.routes)

    def end_session(self, session: str) -> Revocation:
        """Sign a session of the studio out in all processes. Blocking."""
        with self._settings.store() as store:
            return store.revoke(RevokedKind.STUDIO, session, SESSION_SECONDS)

    @property
    def answers(self) -> Answers:
        """What other processes of the endpoint may ask this one, in any thread."""
        return {CLIENTS: lambda: msgspec.json.encode(self._clients.own()), **self._service.answers}

    def start(self) -> None:
        """Start to record figures."""
        self._service.start()

    def begin_shutdown(self) -> None:
        """End the streams of events, which have no end of their own. Call it in the event loop."""
        self._progress.close()

    def close(self) -> None:
        for threads in (self._threads, self._long, self._compiling, self._changing):
            threads.close()
        self._warm.close()
        self._service.close()
