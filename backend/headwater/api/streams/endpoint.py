"""`POST /sync/stream`: answers with a stream of lines that does not end by itself."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from headwater.api.auth.verify import Verifier
from headwater.api.errors import ApiError
from headwater.api.http.requests import name_of, read_body, require_json
from headwater.api.http.takeover import StreamingResponseProtocol, take_over
from headwater.api.refusals import prove
from headwater.api.streams.encoding import GZIP, IDENTITY, ZSTD, Coding, EncodedPiece, WireForm
from headwater.api.streams.service import MAX_AGENT, Opening, Streams
from headwater.api.streams.stream import ClientInfo
from headwater.api.tasks import Tasks
from headwater.sync.formats import Bson, Ndjson
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
            parse = partial(parse_stream_request, limits=self._streams.body_limits)
            body = await self._streams.parsing.parsed(user.user_id, await read_body(request), parse)
        headers = request.headers
        form = choose_form(headers.get("accept"), headers.get("accept-encoding"), raw=body.raw_data)
        agent = headers.get("x-user-agent") or headers.get("user-agent")
        kept = agent and agent[:MAX_AGENT]
        return Opening(body, ClientInfo(user, body.client_id, kept, body.app_metadata, name_of(request.scope)), form)


async def _watch(receive: Receive, sink: HttpSink) -> None:
    """Tell the sink when the client disconnects while its request waits."""
    while (await receive())["type"] != "http.disconnect":
        pass
    sink.leave()


_ANY = ("application/*", "*/*")
_IDENTITY_WEIGHT = 1e-9  # of identity when the header does not name it: acceptable, but after all that it names


@lru_cache(maxsize=64)
def choose_form(accept: str | None, accept_encoding: str | None, *, raw: bool) -> WireForm:
    """Choose format and coding by these headers. `raw` says how NDJSON writes rows. Raises ApiError."""
    if _takes_bson_only(accept):
        # Zstd's pieces put spaces between lines, which BSON does not allow
        return WireForm(Bson(), choose_coding(accept_encoding, (GZIP,)))
    return WireForm(Ndjson(raw), choose_coding(accept_encoding, (ZSTD, GZIP)))


def choose_coding(accepted: str | None, offered: Sequence[Coding]) -> Coding:
    """Choose a coding by an Accept-Encoding header: the one with the highest weight, among equals the first offered,
    and identity if it names none. Raises ApiError when it rules out all of them."""
    weights = _weights(accepted)
    rest = weights.get("*", 0.0)
    candidates = [(weights.get(coding.name, rest), coding) for coding in offered]
    identity = weights.get(IDENTITY.name, weights.get("*", _IDENTITY_WEIGHT))
    weight, coding = max([*candidates, (identity, IDENTITY)], key=lambda each: each[0])
    if weight <= 0:
        raise ApiError(
            "no content coding is acceptable", "Accept-Encoding header", "accept gzip or identity", code="HW_6003"
        )
    return coding


def _takes_bson_only(accept: str | None) -> bool:
    """Whether the header rules out NDJSON. Clients that accept both prefer BSON, but get NDJSON, which costs the server
    less (see `sync.formats`). A header that names neither gets NDJSON too."""
    weights = _weights(accept)
    ndjson = next((weights[name] for name in (Ndjson.media_type, *_ANY) if name in weights), 0.0)
    return weights.get(Bson.media_type, 0.0) > 0 and ndjson <= 0


def _weights(header: str | None) -> dict[str, float]:
    return dict(_weighted(item) for item in (header or "").split(",") if item.strip())


def _weighted(item: str) -> tuple[str, float]:
    name, *parameters = (part.strip() for part in item.lower().split(";"))
    weights = [match[1] for text in parameters if (match := re.fullmatch(r"q=([01](?:\.[0-9]{0,3})?)", text))]
    return "gzip" if name == "x-gzip" else name, float(weights[0]) if weights else 1.0


SLICE_BYTES = 64 * 1024
"""How much is handed to the server at once. The server keeps a copy of what the client has not read yet."""


class HttpSink:
    """Sends a stream as the body of an HTTP answer. `open` takes the connection over from the request. `opened` is done
    when the head of the answer was sent, or when the stream ended before that, with its error."""

    __slots__ = (
        "_body", "_form", "_head", "_left", "_scope", "_send", "_then", "_wrapping", "opened", "sent_bytes",
        "waits_since",
    )  # fmt: skip

    def __init__(self, form: WireForm, scope: Scope, send: Send) -> None:
        self._form = form
        self._scope = scope
        self._send = send
        self._body: StreamingResponseProtocol | None = None  # once the connection was taken over
        self._wrapping = form.coding.open()
        self._head = self._wrapping.begin()
        self._left = False
        self._then: Callable[[], None] | None = None
        self.sent_bytes = 0
        self.waits_since: float | None = None
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_open(self) -> bool:
        return self._body is not None

    async def open(self) -> None:
        headers = [
            (b"content-type", self._form.format.media_type.encode()),
            (b"x-accel-buffering", b"no"),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        if self._form.coding is not IDENTITY:
            headers.append((b"content-encoding", self._form.coding.name.encode()))
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._body = take_over(self._scope, StreamingResponseProtocol)
        del self._send, self._scope
        if self._then is not None:
            self._body.on_close(self._then)
            self._then = None
        if not self.opened.done():  # cancelled with its request
            self.opened.set_result(None)

    async def send(self, piece: EncodedPiece) -> int:
        assert self._body is not None
        content = self._wrapping.wrap(piece)
        for start in range(0, len(content), SLICE_BYTES):
            self.waits_since = time.monotonic()
            head, self._head = self._head, b""
            await self._body.send(head + content[start : start + SLICE_BYTES])
        self.waits_since = None
        self.sent_bytes += len(content)
        return len(content)

    def offer(self, piece: EncodedPiece) -> int | None:
        if len(piece) > SLICE_BYTES or self._body is None or not self._body.has_room:
            return None
        content = self._wrapping.wrap(piece)
        head, self._head = self._head, b""
        self._body.write(head + content)
        self.sent_bytes += len(content)
        return len(content)

    async def end(self) -> None:
        assert self._body is not None
        last = self._head + self._wrapping.end()
        if last:
            await self._body.send(last)
        await self._body.end()

    async def expire(self) -> None:
        await self.end()

    async def fail(self, error: Exception) -> None:
        """Close the connection. The client notices that the body is incomplete."""
        self.close()

    def stop(self) -> None:
        """Do nothing: what waits is at most one batch, and only the client's reading makes room for it."""

    def on_disconnect(self, then: Callable[[], None]) -> None:
        if self._left:
            then()
        else:
            self._then = then

    def leave(self) -> None:
        """Note that the client has disconnected before `open`."""
        self._left = True
        if self._then is not None:
            self._then()

    def close(self) -> None:
        """Close the connection, whatever was sent."""
        if self._body is not None:
            self._body.close()

    def over(self, stream: asyncio.Task[None]) -> None:
        """The stream's task has ended: close the connection, or tell the request why nothing was sent."""
        self.close()
        if self.opened.done():
            return
        error = asyncio.CancelledError() if stream.cancelled() else stream.exception()
        if error is None:
            self.opened.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            self.opened.cancel()
        else:
            self.opened.set_exception(error)
