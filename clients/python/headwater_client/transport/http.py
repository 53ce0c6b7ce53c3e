"""HTTP to a server: the sync stream, and write checkpoints."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import httpx

from headwater_client.errors import ConnectError, ProtocolError, RefusedError, TokenRefusedError, UnreachableError
from headwater_client.protocol.lines import Framing, accepted, framing_of
from headwater_client.protocol.session import op_number
from headwater_client.timeouts import within

STREAM: Final = "/sync/stream"

CONNECT_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Credentials:
    """Where to connect to, and how to prove who this is. The endpoint is a URL without the path."""

    endpoint: str
    token: str


@dataclass(frozen=True)
class ServerStream:
    """An open sync stream. Who takes the next piece is done with the one before."""

    pieces: AsyncIterator[bytes]
    framing: Framing


def url_of(credentials: Credentials, path: str) -> str:
    """The URL of a path of the server. Raises `ConnectError`."""
    endpoint = credentials.endpoint.rstrip("/")
    if not endpoint.startswith(("http://", "https://")):
        raise ConnectError(f"the endpoint {endpoint!r} is no http:// or https:// address")
    return endpoint + path


def authorization(credentials: Credentials) -> str:
    """What proves who this is, as servers want to read it."""
    return f"Token {credentials.token}"


def refusal(path: str, status: int, text: str, headers: Mapping[str, str]) -> RefusedError:
    """The error for an answer other than 200."""
    kind = TokenRefusedError if status == 401 else RefusedError
    wait = headers.get("retry-after", "").strip()
    # It may also be a date, which a device could only compare with a clock that may be wrong
    return kind(path, status, text, float(wait) if wait.isascii() and wait.isdecimal() else None)


_SILENCE: Final = 70.0
"""Seconds without a byte after which a stream is taken for dead: a server speaks every 20 s."""

_LONGEST_ANSWER: Final = 64 << 10
"""Bytes that are read of what is not a stream, in `CONNECT_SECONDS` at most."""


class Http:
    """Requests to one server at a time. An async context manager."""

    def __init__(self, user_agent: str, *, bson: bool = False) -> None:
        self._accept = accepted(bson=bson)
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(_SILENCE, connect=CONNECT_SECONDS),
            headers={"user-agent": user_agent, "x-user-agent": user_agent},
            verify=trusted(),
        )

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def stream(self, credentials: Credentials, body: bytes) -> AsyncIterator[ServerStream]:
        """A sync stream. Raises `TokenRefusedError`, `RefusedError`, `UnreachableError`, also while the block reads."""
        headers = {
            "authorization": authorization(credentials),
            "content-type": "application/json",
            "accept": self._accept,
        }
        url = url_of(credentials, STREAM)
        try:
            async with self._http.stream("POST", url, content=body, headers=headers) as response:
                if response.status_code != 200:
                    raise refusal(STREAM, response.status_code, await _text(response), response.headers)
                yield ServerStream(response.aiter_bytes(), framing_of(response.headers.get("content-type", "")))
        except (httpx.HTTPError, asyncio.TimeoutError) as error:
            raise UnreachableError(f"{url}: {_told(error)}") from error

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
    ) -> str:
        url = url_of(credentials, path)
        headers = {"authorization": authorization(credentials)}
        asked = self._http.stream(method, url, params=params, json=body, headers=headers)
        try:
            async with asked as response:
                text = await _text(response)
        except (httpx.HTTPError, asyncio.TimeoutError) as error:
            raise UnreachableError(f"{url}: {_told(error)}") from error
        if response.status_code != 200:
            raise refusal(path, response.status_code, text, response.headers)
        return text


async def _text(response: httpx.Response) -> str:
    """The beginning of an answer, which a server that is none may let drip without end."""

    async def read() -> bytes:
        held = b""
        async for piece in response.aiter_bytes():
            held += piece
            if len(held) > _LONGEST_ANSWER:
                break
        return held[:_LONGEST_ANSWER]

    return str(await within(CONNECT_SECONDS, read()), "utf-8", "replace")


@lru_cache(maxsize=1)
def trusted() -> ssl.SSLContext:
    """The certificates that servers are checked by: read once, for all devices of the process."""
    return httpx.create_ssl_context()


def _number(path: str, answer: str, field: str) -> int:
    try:
        return op_number(str(json.loads(answer)["data"][field]))
    except (ValueError, KeyError, TypeError, ProtocolError, RecursionError):
        raise ProtocolError(f"{path} answered without {field}: {answer[:200]}") from None


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__
