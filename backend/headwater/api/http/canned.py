"""The answer to a request that no application sees, as bytes."""

from __future__ import annotations

from http import HTTPStatus

from headwater.api.errors import ApiError, error_response


def answer(error: ApiError) -> bytes:
    """The answer that the application would give; the connection ends with it. Pages of other origins may read it."""
    response = error_response(error)
    headers = [*response.raw_headers, (b"access-control-allow-origin", b"*"), (b"connection", b"close")]
    lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    lines += (name + b": " + value for name, value in headers)
    return b"\r\n".join([*lines, b"", bytes(response.body)])
