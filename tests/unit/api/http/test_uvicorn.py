"""What our connections take for granted of uvicorn's, whose classes are no public interface.

Where this fails after an upgrade, read what changed in uvicorn, mend `api/http/protocol.py` and `websocket.py`, and
move the range of versions in pyproject.toml.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from headwater.api.http.protocol import BoundedProtocol
from headwater.api.http.websocket import BoundedWebSocket, _Gate, _Queue

HTTP = {
    "connection_made": ["transport"],
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "on_message_begin": [],
    "on_url": ["url"],
    "on_header": ["name", "value"],
    "on_headers_complete": [],
    "on_body": ["body"],
    "on_message_complete": [],
    "send_400_response": ["msg"],
    "handle_websocket_upgrade": [],
    "_start_asgi_task": ["cycle", "app"],
    "_unsupported_upgrade_warning": [],
    "_unset_keepalive_if_required": [],
}
WEBSOCKET = {
    "connection_lost": ["exc"],
    "data_received": ["data"],
    "resume_writing": [],
    "handle_connect": ["event"],
    "run_asgi": [],
    "keepalive_timeout": [],
    "handle_close": ["event"],
    "handle_ping": [],
    "handle_cont": ["event"],
    "handle_parser_exception": [],
    "send_receive_event_to_app": [],
    "receive": [],
    "send": ["message"],
    "shutdown": [],
}
PLAIN: dict[str, Any] = {"log_config": None, "lifespan": "off"}


@pytest.mark.parametrize(
    ("base", "own", "methods"),
    [(HttpToolsProtocol, BoundedProtocol, HTTP), (WebSocketsSansIOProtocol, BoundedWebSocket, WEBSOCKET)],
)
def test_methods_we_override_and_call(base: type, own: type, methods: dict[str, list[str]]) -> None:
    for name, parameters in methods.items():
        assert list(inspect.signature(getattr(base, name)).parameters)[1:] == parameters, name
    overridden = {name for name in vars(own) if name in vars(base) and inspect.isfunction(vars(own)[name])}
    assert overridden - {"__init__"} <= methods.keys()
    assert list(inspect.signature(base).parameters) == ["config", "server_state", "app_state", "_loop"]


class _Transport(asyncio.Transport):
    """Takes what is written."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False


async def _answer(_: object, __: object, send: Callable[[dict[str, object]], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def _protocol(app: Callable[..., Awaitable[None]], transport: asyncio.Transport) -> HttpToolsProtocol:
    """A connection that has got a request, in a running loop."""
    protocol = HttpToolsProtocol(uvicorn.Config(app, http="httptools", **PLAIN), ServerState(), {})
    protocol.connection_made(transport)
    protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")
    return protocol


async def _request() -> HttpToolsProtocol:
    protocol = _protocol(_answer, _Transport())
    await asyncio.gather(*protocol.tasks)
    protocol._unset_keepalive_if_required()
    return protocol


def test_connection_attributes_we_use() -> None:
    protocol = asyncio.run(_request())
    for name in ("transport", "flow", "loop", "url", "client", "pipeline", "cycle"):
        assert hasattr(protocol, name), name
    for name in ("disconnected", "message_event", "response_started", "response_complete", "body"):
        assert hasattr(protocol.cycle, name), name
    assert protocol.cycle.response_complete
    for name in ("read_paused", "resume_reading", "resume_writing"):
        assert hasattr(protocol.flow, name), name


def test_connection_made_sets_what_we_set() -> None:
    made = set(re.findall(r"self\.(\w+) = ", inspect.getsource(HttpToolsProtocol.connection_made)))
    assert made == {"transport", "flow", "server", "client", "scheme"}


async def _goes_on(_: object, __: object, send: Callable[[dict[str, object]], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def _taken_over(caplog: pytest.LogCaptureFixture) -> HttpToolsProtocol:
    protocol = _protocol(_goes_on, transport := _Transport())
    protocol.cycle.response_complete = True
    await asyncio.gather(*protocol.tasks)
    assert not transport.closed
    assert not caplog.records
    return protocol


def test_response_called_complete_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    protocol = asyncio.run(_taken_over(caplog))
    assert protocol in protocol.server_state.connections
    assert protocol.connections is protocol.server_state.connections
    assert isinstance(protocol.cycle.scope, dict)
    assert protocol.flow.write_paused is False


@pytest.mark.parametrize(("name", "own"), [("queue", _Queue), ("writable", _Gate)])
def test_stand_ins_for_queue_and_event_are_whole(name: str, own: type) -> None:
    called = set(re.findall(rf"self\.{name}\.(\w+)\(", inspect.getsource(WebSocketsSansIOProtocol)))
    assert len(called) >= 3
    assert called <= set(dir(own))


def test_accepted_websocket_no_longer_needs_its_request() -> None:
    using = {
        name
        for name, method in inspect.getmembers(WebSocketsSansIOProtocol, inspect.isfunction)
        if re.search(r"self\.(scope|request|response)\b", inspect.getsource(method))
    }
    assert using == {"handle_connect", "run_asgi", "send"}


async def _websocket() -> WebSocketsSansIOProtocol:
    return WebSocketsSansIOProtocol(uvicorn.Config(_answer, ws="websockets-sansio", **PLAIN), ServerState(), {})


def test_websocket_attributes_we_read() -> None:
    websocket = asyncio.run(_websocket())
    assert websocket.writable.is_set()
    assert (websocket.frames, websocket.handshake_initiated, websocket.handshake_complete) == ([], False, False)
    timers = "close_timer ping_timeout ping_sent_at pong_timer"
    for name in f"conn config loop transport disconnected close_sent {timers} send_500_response".split():
        assert hasattr(websocket, name), name
