"""Probes of this process, for an orchestrator such as Kubernetes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route


@dataclass(frozen=True, slots=True)
class ProbeState:
    """`started`: the store was read at least once. `ready`: a sync config is active, the store can be read, and the
    process is not shutting down. `touched_at`: when the store was last read, in seconds since 1970."""

    started: bool
    ready: bool
    touched_at: float


def probe_routes(health: Callable[[], ProbeState], is_alive: Callable[[], bool]) -> list[BaseRoute]:
    """The routes of the startup, readiness and liveness probes, which answer 200 or 400."""

    async def startup(_: Request) -> Response:
        return _answer(health(), health().started)

    async def readiness(_: Request) -> Response:
        return _answer(health(), health().ready)

    async def liveness(_: Request) -> Response:
        return _answer(health(), is_alive())

    return [
        Route("/probes/startup", startup),
        Route("/probes/readiness", readiness),
        Route("/probes/liveness", liveness),
    ]


def _answer(health: ProbeState, good: bool) -> Response:
    touched = datetime.fromtimestamp(health.touched_at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    body = {"ready": health.ready, "started": health.started, "touched_at": touched}
    return JSONResponse(body, status_code=200 if good else 400)
