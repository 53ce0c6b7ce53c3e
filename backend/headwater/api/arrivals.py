"""Waits until what was committed at the source before a request has been replicated."""

from __future__ import annotations

import asyncio

from headwater.api.bell import Bell
from headwater.api.errors import ApiError, ShuttingDownError
from headwater.api.streams.hub import Hub
from headwater.sync.interest import News

WAIT_SECONDS = 50.0


class NotReplicatedError(ApiError):
    """The source's newest changes were not replicated within the time that a client waits for them."""

    code = "HW_6006"


class Arrival:
    """Stands in for a stream at the hub (a Follower), which tells it about write checkpoints of its key. Use it as a
    context, entered before the write checkpoint is created."""

    config_id = None

    def __init__(self, hub: Hub, write_key: str) -> None:
        self._hub = hub
        self.write_key = write_key
        self._newest = 0
        self._ended = False
        self._told = Bell()

    def __enter__(self) -> Arrival:
        self._hub.join(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._hub.leave(self)

    def tell(self, news: News) -> None:
        self._newest = max(self._newest, news.write_checkpoint or 0)
        self._told.ring()

    def end(self, reason: str) -> None:
        self._ended = True
        self._told.ring()

    async def of(self, write_checkpoint: int) -> None:
        """Wait until a checkpoint contains this write checkpoint. Raises NotReplicatedError or ShuttingDownError."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while self._newest < write_checkpoint:
                    if self._ended:
                        raise ShuttingDownError("the service is shutting down", fix="send the request again")
                    await self._told.next()
        except TimeoutError:
            what = f"the source's changes were not replicated within {WAIT_SECONDS:.0f} s"
            raise NotReplicatedError(what, fix="try again later") from None
