"""Connections to an endpoint in the same event loop, without sockets: its protocol classes are called directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from uvicorn.server import ServerState

from headwater.api.app import ApiApp
from headwater.api.http.connections import LimitedConfig
from headwater.api.http.protocol import BoundedProtocol
from headwater.api.http.server import ApiServer
from tests.unit.api.hostile.line import Connect, Line


@asynccontextmanager
async def listening(app: ApiApp) -> AsyncIterator[Connect]:
    """Run the application; gives a function that connects to it."""
    config = ApiServer(app).config
    assert isinstance(config, LimitedConfig)
    config.load()
    async with app.router.lifespan_context(app):

        async def connect() -> Line:
            return InnerLine(config)

        yield connect


class InnerLine(Line):
    """Both ends of a connection."""

    def __init__(self, config: LimitedConfig) -> None:
        super().__init__(patience=0.03)
        self._transport = _Transport(self)
        self._state = ServerState()
        self._state.default_headers = config.encoded_headers
        self._state.tasks = _Tasks(self._news.set)
        self._transport.connect(BoundedProtocol(config, self._state, {}))

    def send(self, piece: bytes) -> None:
        self._transport.protocol.data_received(piece)

    @property
    def takes(self) -> bool:
        return not self._transport.reading_paused

    async def writable(self) -> None:
        while self._transport.reading_paused and not self.over:
            await self._transport.resumed.wait()

    def hang_up(self) -> None:
        self._transport.lose()

    @property
    def idle(self) -> bool:
        return not self._state.tasks

    def turn_away(self) -> None:
        self._transport.protocol.pause_writing()


class _Tasks(set[Any]):
    """Tells when one is done."""

    def __init__(self, done: Callable[[], None]) -> None:
        super().__init__()
        self._done = done

    def discard(self, task: object) -> None:
        super().discard(task)
        self._done()


class _Transport(asyncio.Transport):
    """The endpoint's side, which the line hears. The connection is lost in a turn of the loop of its own, once."""

    def __init__(self, line: InnerLine) -> None:
        super().__init__()
        self._line = line
        self._closing = False
        self._lost = False
        self._shut = False
        self.reading_paused = False
        self.resumed = asyncio.Event()
        self.protocol: Any = None

    def connect(self, protocol: asyncio.Protocol) -> None:
        self.protocol = protocol
        protocol.connection_made(self)

    def write(self, data: Any) -> None:
        if self._shut:
            raise RuntimeError("nothing can be written any more")  # as uvloop's does
        if not self._closing:
            self._line.hear(bytes(data))

    def write_eof(self) -> None:
        self._shut = True
        self._line.end()

    def close(self) -> None:
        self.lose()

    def abort(self) -> None:
        self.lose()

    def lose(self) -> None:
        self._closing = True
        self._line.end()
        self.resumed.set()
        if not self._lost:
            self._lost = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._shut = True
        self.protocol.connection_lost(None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self.reading_paused = True
        self.resumed.clear()

    def resume_reading(self) -> None:
        self.reading_paused = False
        self.resumed.set()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        found: asyncio.BaseProtocol = self.protocol
        return found

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 50_000), "sockname": ("127.0.0.1", 80)}.get(name, default)
