"""Headers that all answers of a group of routes have."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """An ASGI `send` that adds headers to the answer, where it does not have them."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer = MutableHeaders(scope=message)
            for name, value in headers.items():
                answer.setdefault(name, value)
        await send(message)

    return sending
