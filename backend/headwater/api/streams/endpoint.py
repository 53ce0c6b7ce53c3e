"""`POST /sync/stream`: answers with a stream of lines that does not end by itself."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from headwater.api.auth.verify import Verifier
from headwater.api.http.body import read_body, require_json
from headwater.api.http.requests import name_of
from headwater.api.refusals import prove
from headwater.api.streams.negotiation import choose_form
from headwater.api.streams.service import Opening, Streams
from headwater.api.streams.sink import HttpSink
from headwater.api.tasks import Tasks
from headwater.sync.request import parse_stream_request


class StreamEndpoint:
    """The ASGI endpoint. A stream goes on in a task of its own when its request is over."""

    def __init__(self, streams: Streams, verifier: Verifier, tasks: Tasks) -> None:
        self._streams = streams
        self._verifier = verifier
        self._tasks = tasks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        opening = await self._opening(Request(scope, receive))
        sink = HttpSink(opening.form, scope, send)
        stream = self._tasks.start(self._streams.serve(opening, sink))
        stream.add_done_callback(sink.over)
        watch = self._tasks.start(_watch(receive, sink))
        try:
            await sink.opened
        except asyncio.CancelledError:
            stream.cancel()
            raise
        finally:
            watch.cancel()

    async def _opening(self, request: Request) -> Opening:
        """Read the request. The token is verified, and the user's share checked, before any of the body is read."""
        require_json(request)
        user = await self._verifier.authorize(request.headers.get("authorization"))
        prove(request, user.user_id)
        self._streams.raise_unless_admitted(user.user_id)
        with self._streams.requests.hold(user.user_id):
            parse = partial(parse_stream_request, limits=self._streams.asked)
            asked = await self._streams.parsing.parsed(user.user_id, await read_body(request), parse)
        headers = request.headers
        form = choose_form(headers.get("accept"), headers.get("accept-encoding"), raw=asked.raw_data)
        agent = headers.get("x-user-agent") or headers.get("user-agent")
        return Opening(asked, user, agent, form, name_of(request.scope))


async def _watch(receive: Receive, sink: HttpSink) -> None:
    """Tell the sink when the client disconnects while its request waits."""
    while (await receive())["type"] != "http.disconnect":
        pass
    sink.leave()
