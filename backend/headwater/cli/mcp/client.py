"""Requests to the admin API of a running service."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from urllib.parse import urlencode, urlsplit

import click
import httpcore

from headwater.errors import HeadwaterError

_TIMES = {"connect": 5.0, "write": 30.0, "read": 90.0, "pool": 30.0}  # a request may take 30 s, and wait for others
_LARGEST = 32 * 1024 * 1024


class AdminApiError(HeadwaterError):
    """The admin API does not answer, or with something else than JSON."""

    code = "HW_8006"


class AdminClient:
    """Sends requests with the token to one address. It follows no redirects, which would give the token away. Raises
    click.UsageError for an address that is none."""

    def __init__(self, url: str, token: str = "") -> None:
        try:
            parts = urlsplit(url)
            valid = parts.scheme in {"http", "https"} and parts.hostname and not (parts.query or parts.fragment)
            _ = parts.port
        except ValueError:
            valid = False
        if not valid:
            raise click.UsageError(f"--url is no address of a service: {url}; write it like http://127.0.0.1:8080")
        self._url = url.rstrip("/")
        self._token = token
        self._pool = httpcore.AsyncConnectionPool(max_connections=4)

    def of(self, token: str) -> AdminClient:
        """The same with another token, over the same connections."""
        other = copy(self)
        other._token = token
        return other

    async def send(
        self, method: str, path: str, query: Mapping[str, object] | None = None, body: object | None = None
    ) -> tuple[int, bytes]:
        """The status and body of the answer. Raises AdminApiError."""
        headers = [("Authorization", f"Token {self._token}"), ("Accept", "application/json")]
        if body is not None:
            headers.append(("Content-Type", "application/json"))
        content = None if body is None else json.dumps(body).encode()
        address = f"{self._url}{path}{'?' + urlencode(query) if query else ''}"
        try:
            extensions = {"timeout": _TIMES}
            async with self._pool.stream(
                method, address, headers=headers, content=content, extensions=extensions
            ) as answer:
                received = bytearray()
                async for part in answer.aiter_stream():
                    received += part
                    if len(received) > _LARGEST:
                        raise self._error(f"its answer has more than {_LARGEST:,} bytes")
                return answer.status, bytes(received)
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise self._error(str(error) or type(error).__name__) from error

    async def json(self, method: str, path: str) -> dict[str, object]:
        """The answer, which has to be a JSON object of a request that is not refused. Raises AdminApiError."""
        status, body = await self.send(method, path)
        try:
            found = json.loads(body)
        except ValueError:
            found = None
        if status != 200 or not isinstance(found, dict):
            raise self._error(said(status, body))
        return found

    async def close(self) -> None:
        await self._pool.aclose()

    def _error(self, why: str) -> AdminApiError:
        return AdminApiError(f"the admin API does not answer as one: {why}", self._url, "check --url and the token")


def said(status: int, body: bytes) -> str:
    """What a refusal says, in a line."""
    try:
        error = json.loads(body)["error"]
        return f"[{error['code']}] {error['description']}: {error['details']}"
    except (ValueError, KeyError, TypeError):
        return f"status {status}"
