"""Reading request bodies from strangers."""

from __future__ import annotations

from starlette.requests import Request

from headwater.api.errors import BodyTooLargeError
from headwater.api.http.errors import UnsupportedMediaTypeError

MAX_BODY = 1024 * 1024

JSON = "application/json"


async def read_body(request: Request, limit: int = MAX_BODY) -> bytes:
    """The whole body. Raises BodyTooLargeError as soon as it is known to be too large, ClientDisconnect when it will
    never come: the server ends connections that take too long over it."""
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        parts.append(part)
    return b"".join(parts)


def require_json(request: Request) -> None:
    """Refuse a body that says it is something else. One that says nothing is taken for JSON."""
    said = request.headers.get("content-type", "")
    if said and said.partition(";")[0].strip().lower() != JSON:
        raise UnsupportedMediaTypeError("the body is not JSON", "Content-Type header", f"send {JSON}")


def _too_large(limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(f"the request body is larger than {limit} bytes", fix="send less")
