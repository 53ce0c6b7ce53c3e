"""Reading request bodies from strangers."""

from __future__ import annotations

from starlette.requests import Request

from headwater.api.errors import BodyTooLargeError

MAX_BODY = 1024 * 1024


async def read_body(request: Request, most: int = MAX_BODY) -> bytes:
    """The whole body, of at most so many bytes. Raises BodyTooLargeError as soon as it is known to be too large."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise BodyTooLargeError(f"the request body is larger than {most} bytes", fix="send less")
        parts.append(part)
    return b"".join(parts)
