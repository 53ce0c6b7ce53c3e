"""HTTP to a server: the sync stream, and write checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import httpx

from headwater_client.errors import ConnectError, ProtocolError, Refused, TokenRefused, Unreachable
from headwater_client.protocol.framing import Framing, accepted, framing_of

_SILENCE: Final = 70.0
"""Seconds without a byte after which a stream is taken for dead: a server speaks every 20 s."""

_CONNECT: Final = 30.0


@dataclass(frozen=True)
class Credentials:
    """Where to connect to, and how to prove who this is. The endpoint is a URL without the path."""

    endpoint: str
    token: str


@dataclass(frozen=True)
class Stream:
    """An open sync stream."""

    pieces: AsyncIterator[bytes]
    framing: Framing


class Transport:
    """Requests to one server at a time. An async context manager."""

    def __init__(self, user_agent: str, *, bson: bool = False) -> None:
        self._accept = accepted(bson=bson)
        timeout = httpx.Timeout(_SILENCE, connect=_CONNECT)
        self._http = httpx.AsyncClient(timeout=timeout, headers={"user-agent": user_agent, "x-user-agent": user_agent})

    async def __aenter__(self) -> Transport:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def stream(self, credentials: Credentials, body: bytes) -> AsyncIterator[Stream]:
        """A sync stream. Raises `TokenRefused`, `Refused`, `Unreachable`, also while the block reads."""
        headers = {**_authorized(credentials), "content-type": "application/json", "accept": self._accept}
        url = _url(credentials, "/sync/stream")
        try:
            async with self._http.stream("POST", url, content=body, headers=headers) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _refusal("/sync/stream", response)
                yield Stream(response.aiter_bytes(), framing_of(response.headers.get("content-type", "")))
        except httpx.HTTPError as error:
            raise Unreachable(f"{url}: {_told(error)}") from error

    async def write_checkpoint(self, credentials: Credentials, client_id: str) -> int:
        """A new write checkpoint: a checkpoint that has it also has all that was written before this call."""
        path = "/write-checkpoint2.json"
        answer = await self._ask("GET", path, credentials, params={"client_id": client_id})
        return _number(path, answer, "write_checkpoint")

    async def request_checkpoint(self, credentials: Credentials, client_id: str, number: int) -> int:
        """Ask for a checkpoint by a number of our own; the number that the server has then, which may be higher."""
        path = "/sync/checkpoint-request"
        body = {"client_id": client_id, "checkpoint_request_id": str(number)}
        return _number(path, await self._ask("POST", path, credentials, body=body), "checkpoint_request_id")

    async def _ask(
        self,
        method: str,
        path: str,
        credentials: Credentials,
        *,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        url = _url(credentials, path)
        try:
            response = await self._http.request(method, url, params=params, json=body, headers=_authorized(credentials))
        except httpx.HTTPError as error:
            raise Unreachable(f"{url}: {_told(error)}") from error
        if response.status_code != 200:
            raise _refusal(path, response)
        return response


def _url(credentials: Credentials, path: str) -> str:
    endpoint = credentials.endpoint.rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise ConnectError(f"the endpoint {endpoint!r} is no http:// or https:// address")
    return endpoint + path


def _authorized(credentials: Credentials) -> dict[str, str]:
    return {"authorization": f"Token {credentials.token}"}


def _refusal(path: str, response: httpx.Response) -> Refused:
    kind = TokenRefused if response.status_code == 401 else Refused
    return kind(path, response.status_code, response.text)


def _number(path: str, response: httpx.Response, field: str) -> int:
    try:
        return int(response.json()["data"][field])
    except (ValueError, KeyError, TypeError):
        raise ProtocolError(f"{path} answered without {field}: {response.text[:200]}") from None


def _told(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__
