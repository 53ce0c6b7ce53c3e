"""A client's end of a connection, and how a conversation goes over it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Final

from tests.unit.api.hostile.conversation import Conversation

_KEPT: Final = 1 << 20
_ENOUGH: Final = (b'"checkpoint_complete"', b"checkpoint_complete\0")


class Line(ABC):
    """One connection to an endpoint. A client that hears nothing hangs up after `patience`, in seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.heard = bytearray()
        self.over = False
        self._news = asyncio.Event()

    @abstractmethod
    def send(self, piece: bytes) -> None:
        """Say something."""

    @property
    @abstractmethod
    def takes(self) -> bool:
        """Whether the other side takes more now."""

    @abstractmethod
    async def writable(self) -> None:
        """Wait until the other side takes more, or the line is over."""

    @abstractmethod
    def hang_up(self) -> None:
        """Leave without a word."""

    @property
    @abstractmethod
    def idle(self) -> bool:
        """Whether the other side is known to have nothing more to say."""

    @abstractmethod
    def turn_away(self) -> None:
        """Read nothing from now on."""

    def hear(self, content: bytes) -> None:
        """Something came."""
        if len(self.heard) < _KEPT:
            self.heard += content
        self._news.set()

    def end(self) -> None:
        """The other side has ended the connection."""
        self.over = True
        self._news.set()

    async def until(self, text: bytes, seconds: float = 60.0) -> None:
        """Read on until this came. Raises TimeoutError, and EOFError at the end."""
        async with asyncio.timeout(seconds):
            while text not in self.heard:
                if self.over:
                    raise EOFError
                await self._more()

    async def converse(self, conversation: Conversation) -> None:
        """Say it all, hear what is answered, and hang up."""
        try:
            if conversation.deaf:
                self.turn_away()
            for number, piece in enumerate(conversation.pieces):
                if number == 1 and conversation.waits:
                    await self._answered(b"\r\n\r\n")
                if not self.takes:
                    async with asyncio.timeout(self._patience):
                        await self.writable()
                if self.over:
                    break
                self.send(piece)
                await asyncio.sleep(0)
            await self._answered(conversation.last)
        except TimeoutError:
            pass
        finally:
            self.hang_up()

    async def _answered(self, last: bytes) -> None:
        """Wait until all is said: until `last` came, a stream is whole, or nothing comes for a while."""
        seen = 0
        while not self.over and not self.idle:
            new = self.heard[max(0, seen - 40) :]
            if (last and last in new) or any(text in new for text in _ENOUGH):
                return
            seen = len(self.heard)
            async with asyncio.timeout(self._patience):
                await self._more()

    async def _more(self) -> None:
        self._news.clear()
        await self._news.wait()


Connect = Callable[[], Awaitable[Line]]
"""Makes a line to an endpoint."""
