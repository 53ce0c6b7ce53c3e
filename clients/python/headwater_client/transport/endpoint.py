"""Where a server is, what an open stream of it is, and what its refusals mean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final

from headwater_client.errors import ConnectError, Refused, TokenRefused
from headwater_client.protocol.framing import Framing

STREAM: Final = "/sync/stream"

CONNECT_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Credentials:
    """Where to connect to, and how to prove who this is. The endpoint is a URL without the path."""

    endpoint: str
    token: str


@dataclass(frozen=True)
class Stream:
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


def refusal(path: str, status: int, text: str, headers: Mapping[str, str]) -> Refused:
    """The error for an answer other than 200."""
    kind = TokenRefused if status == 401 else Refused
    wait = headers.get("retry-after", "").strip()
    # It may also be a date, which a device could only compare with a clock that may be wrong
    return kind(path, status, text, float(wait) if wait.isascii() and wait.isdecimal() else None)
