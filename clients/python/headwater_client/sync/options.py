"""How a device connects, and what it calls of the app's."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, get_args

from headwater_client.errors import ConnectError, TokenRefusedError
from headwater_client.protocol.lines import accepted
from headwater_client.protocol.session import FETCH_AHEAD, json_text
from headwater_client.storage.store import DeviceStore
from headwater_client.storage.streams import StreamKey
from headwater_client.sync.status import StatusBoard
from headwater_client.transport.http import Credentials
from headwater_client.transport.websocket import connector

CheckpointMode = Literal["legacy", "requests"]
"""Who numbers write checkpoints: every server does (`legacy`), newer ones also take numbers of the device."""

TransportKind = Literal["http", "websocket"]
"""What the sync stream comes over. Uploads and checkpoints go over HTTP either way."""

T = TypeVar("T")


@dataclass(frozen=True)
class ConnectOptions:
    """`parameters` are for the sync config, `app_metadata` for the server's log; times are in seconds.

    `retry_delay` is the longest first wait after a failure; it doubles up to a minute. `bson` asks for BSON lines,
    which a websocket always has.
    """

    parameters: Mapping[str, object] = field(default_factory=dict)
    app_metadata: Mapping[str, str] = field(default_factory=dict)
    include_defaults: bool = True
    retry_delay: float = 1.0
    upload_throttle: float = 0.1
    checkpoint_mode: CheckpointMode = "legacy"
    transport: TransportKind = "http"
    bson: bool = False

    def check(self) -> None:
        """Raise `ConnectError` for what means nothing, and `MissingExtraError` for what is not installed."""
        transport, mode = (self.transport, TransportKind), (self.checkpoint_mode, CheckpointMode)
        for what, (given, known) in {"transport": transport, "checkpoint mode": mode}.items():
            if given not in get_args(known):
                raise ConnectError(f"there is no {what} {given!r}: use one of {', '.join(get_args(known))}")
        try:
            json_text([dict(self.parameters), dict(self.app_metadata)])
        except (ValueError, TypeError, RecursionError) as error:
            raise ConnectError(f"parameters and app_metadata go to the server as JSON: {error}") from error
        if self.transport == "websocket":
            connector()
        accepted(bson=self.bson)


@dataclass(frozen=True)
class AppCalls:
    """The app's side, as coroutines that run in the sync thread's loop. Once `retired` is set they are to end."""

    fetch_credentials: Callable[[], Awaitable[Credentials]]
    upload: Callable[[], Awaitable[None]]
    retired: threading.Event


@dataclass(frozen=True)
class SyncSetup:
    """What the sync of one file works with. `open_store` opens a connection of the sync thread's own; `subscribed` are
    the streams that the app holds; `show` is called when rows of the app's tables have changed."""

    path: Path
    open_store: Callable[[threading.Event], DeviceStore]
    app: AppCalls
    options: ConnectOptions
    board: StatusBoard
    user_agent: str
    subscribed: Callable[[], Collection[StreamKey]]
    show: Callable[[], None]


class Tokens:
    """The newest credentials, fetched when there are none."""

    def __init__(self, fetch: Callable[[], Awaitable[Credentials]]) -> None:
        self._fetch = fetch
        self.known: Credentials | None = None  # if they are still good
        self._fetching: asyncio.Task[Credentials] | None = None
        self._renewed_at = -math.inf

    async def get(self) -> Credentials:
        """All who wait share one call of the app, which goes on if one of them is cancelled."""
        if self.known is None:
            if self._fetching is None:
                self._fetching = asyncio.ensure_future(self._fetch_once())
            return await asyncio.shield(self._fetching)
        return self.known

    async def using(self, call: Callable[[Credentials], Awaitable[T]]) -> T:
        """Call with the newest, and once more with others where the server takes those no more."""
        credentials = await self.get()
        try:
            return await call(credentials)
        except TokenRefusedError:
            self.invalidate(credentials)
        others = await self.get()
        try:
            return await call(others)
        except TokenRefusedError:
            self.invalidate(others)
            raise

    async def _fetch_once(self) -> Credentials:
        try:
            self.known = await self._fetch()
            return self.known
        finally:
            self._fetching = None

    async def renew(self, used: Credentials | None) -> bool:
        """Fetch new ones before the used ones end; whether there are others then. Where all tokens are of so short a
        life, another is no better."""
        if time.monotonic() - self._renewed_at <= FETCH_AHEAD:
            return False
        self.invalidate(used)
        renewed = await self.get()
        self._renewed_at = time.monotonic()
        return renewed != used

    def invalidate(self, refused: Credentials | None) -> None:
        """Fetch new ones the next time, unless there are others than the refused ones already."""
        if self.known == refused:
            self.known = None
