"""Devices that are connected to this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headwater.api.streams.connected import Connected


@dataclass(frozen=True, slots=True)
class ClientTold:
    """A device with an open stream. Times in seconds since 1970; `operations` and `bytes` are what it was sent over
    this stream, `checkpoint` is the op that it has everything up to, or is being sent."""

    user: str
    client: str | None
    user_agent: str | None
    app_metadata: Mapping[str, str]
    connected: float
    token_expires: float
    operations: int
    bytes: int
    buckets: int
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Clients:
    """The open streams of one process of the endpoint, longest first. Another process knows its own."""

    host: str
    process: int
    clients: tuple[ClientTold, ...]


class ClientsDesk:
    """Lives in the event loop, where streams are."""

    def __init__(self, connected: Callable[[], Sequence[Connected]]) -> None:
        self._connected = connected

    async def clients(self) -> Clients:
        """Devices with an open stream to the process that answers."""
        told = sorted(map(_told, self._connected()), key=lambda client: client.connected)
        return Clients(socket.gethostname(), os.getpid(), tuple(told))


def _told(stream: Connected) -> ClientTold:
    caller = stream.caller
    return ClientTold(
        stream.user.user_id,
        caller.client_id,
        caller.user_agent,
        caller.app_metadata,
        caller.since,
        stream.user.expires_at,
        stream.operations,
        stream.bytes,
        stream.buckets,
        stream.op_id,
    )
