"""Connects to hosts that keys are fetched from. A host name is resolved once, and the connection goes to an address
that was checked, so that a name that resolves differently a moment later gets around nothing."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

import httpcore

from headwater.api.auth.addresses import AddressRules

SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that the rules allow."""

    def __init__(self, rules: AddressRules) -> None:
        self._rules = rules
        self._network = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        *others, last = self._rules.allowed(host, await _resolve(host, port))
        for address in others:
            try:
                return await self._network.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(last, port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)


async def _resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, without duplicates. Raises httpcore.ConnectError."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError("the host name can't be resolved") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
