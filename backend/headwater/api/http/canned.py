"""Answers, as bytes, to requests that the server refuses before the application sees them."""

from __future__ import annotations

from http import HTTPStatus

from headwater.api.error_answers import error_response
from headwater.api.errors import ApiError


def answer(error: ApiError) -> bytes:
    """The answer that the application would give to this error, with CORS headers, and `Connection: close`."""
    response = error_response(error)
    headers = [*response.raw_headers, (b"access-control-allow-origin", b"*"), (b"connection", b"close")]
    lines = [f"HTTP/1.1 {response.status_code} {HTTPStatus(response.status_code).phrase}".encode()]
    lines += (name + b": " + value for name, value in headers)
    return b"\r\n".join([*lines, b"", bytes(response.body)])
