"""Reads request bodies from untrusted clients."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request

from headwater.api.errors import BodyTooLargeError
from headwater.api.http.errors import UnsupportedMediaTypeError

MAX_BODY = 1024 * 1024

JSON = "application/json"


async def read_body(
    request: Request, limit: int = MAX_BODY, arrived: Callable[[int], object] = lambda _: None
) -> bytes:
    """Read the whole body, of at most `limit` bytes. Raises BodyTooLargeError as soon as it is known to be larger, and
    ClientDisconnect when the connection ends first; the server ends connections that are too slow. `arrived` is called
    with the number of bytes of each part, and may raise an error."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        arrived(len(part))
        parts.append(part)
    return b"".join(parts)


def require_json(request: Request) -> None:
    """Raise UnsupportedMediaTypeError unless Content-Type is JSON or missing."""
    said = request.headers.get("content-type", "")
    if said and said.partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMediaTypeError("the body is not JSON", "Content-Type header", f"send {JSON}")


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the request body is larger than {limit} bytes", fix="send less")
