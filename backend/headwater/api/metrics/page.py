"""The page that Prometheus reads, on a port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

PATH = "/metrics"

_Encoder = Callable[[Collector], bytes]


class MetricsPage:
    """An ASGI application that answers /metrics. Collecting reads the store, so it runs in a thread. There is only one,
    and requests that arrive while it collects share its result. With `process`, it has this process's CPU time and
    memory, too."""

    def __init__(self, *collectors: Collector, process: bool = True) -> None:
        self._registry = CollectorRegistry()
        for each in collectors:
            self._registry.register(each)
        if process:
            ProcessCollector(registry=self._registry)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headwater-metrics")
        self._collecting: dict[str, asyncio.Future[bytes]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await (await self._answer(Request(scope)))(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    async def _answer(self, request: Request) -> Response:
        if request.url.path != PATH:
            return PlainTextResponse(f"the metrics are at {PATH}\n", 404)
        if request.method not in {"GET", "HEAD"}:
            return PlainTextResponse("only GET is answered\n", 405, {"allow": "GET, HEAD"})
        encode, content_type = _form(request.headers.get("accept", ""))
        if content_type not in self._collecting:
            collecting = asyncio.get_running_loop().run_in_executor(self._thread, encode, self._registry)
            self._collecting[content_type] = collecting
            collecting.add_done_callback(lambda _: self._collecting.pop(content_type))
        body = await asyncio.shield(self._collecting[content_type])
        return Response(body, headers={"content-type": content_type})


def _form(accept: str) -> tuple[_Encoder, str]:
    """The format that an Accept header asks for; the plain one when the header is malformed."""
    try:
        return choose_encoder(accept)
    except (ValueError, TypeError):  # TypeError when a version is not a number
        return generate_latest, CONTENT_TYPE_PLAIN_0_0_4
