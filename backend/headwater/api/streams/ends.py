"""How streams end: why, what their clients are told of it, and what the log is."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from headwater.api.auth.claims import Principal
from headwater.api.auth.errors import TokenExpiredError
from headwater.api.errors import GoneError, NoActiveConfigError
from headwater.api.refusals import Refusals
from headwater.api.streams.connected import Caller
from headwater.api.streams.dialogue import ConfigReplacedError, LimitCrossedError
from headwater.api.streams.hub import REPLACED
from headwater.api.streams.sink import Sink
from headwater.api.streams.traffic import FAILED
from headwater.errors import HeadwaterError
from headwater.telemetry.log_facts import log_extra
from headwater_rules.evaluate.limits import LIMIT_CODE
from headwater_rules.results import LeftOut

OTHER_STREAMS = "other streams fit into the limits"
"""Why a stream ends when limits now leave out other subscriptions than its device was told."""

EXPIRED = "token expired"
AGAIN = "connect again"

OVER: dict[type[Exception], str] = {
    ConfigReplacedError: REPLACED,
    NoActiveConfigError: REPLACED,
    LimitCrossedError: OTHER_STREAMS,
}
"""Errors of reading that end a stream normally, and the reasons that they are."""

log = logging.getLogger("headwater.api.streams.stream")


class StalledError(HeadwaterError):
    """A device read nothing of its stream for a while. The stream is cut off to free its memory; the device connects
    again and continues where it was."""

    code = "HW_6020"


@dataclass(frozen=True, slots=True)
class Named:
    """A stream as the log names it."""

    user: Principal
    caller: Caller

    def closed(self, reason: str, seconds: float, operations: int, sent: int) -> None:
        """Log the end of the stream: why, and what it sent over so many seconds."""
        facts = {
            **self._names(),
            "user_agent": self.caller.user_agent,
            "app_metadata": self.caller.app_metadata or None,
            "close_reason": reason,
            "duration_ms": round(seconds * 1000),
            "operations": operations,
            "bytes": sent,
        }
        log.info("sync stream closed", extra=log_extra(facts))

    def failed(self, error: Exception) -> str:
        """Log that an error cut the stream off. Returns the reason for its end."""
        if isinstance(error, HeadwaterError):
            log.error("a stream was cut off: %s", error, extra=log_extra(self._names()))
            return f"{FAILED}: {error.code}"
        log.error("a stream was cut off", extra=log_extra(self._names()), exc_info=error)
        return FAILED

    def stalled(self, refusals: Refusals) -> None:
        """Log and count that the device does not read."""
        refusals.note(StalledError.code, self.user.user_id, "a stream was cut off", {"reason": "not reading"})

    def left_out(self, refusals: Refusals, left_out: Sequence[LeftOut]) -> None:
        """Log and count that subscriptions did not fit into the limits of the request."""
        if left_out:
            names = {"client_id": self.caller.client_id, "subscriptions": len(left_out), "first": left_out[0].message}
            refusals.note(LIMIT_CODE, self.user.user_id, "streams left out", names)

    def _names(self) -> dict[str, object]:
        return {
            **self.caller.request._asdict(),
            "user_id": self.user.user_id,
            "client_id": self.caller.client_id,
        }


async def tell(sink: Sink, error: Exception) -> None:
    """Cut a stream off, telling its client why as far as it can still be told."""
    with suppress(GoneError):
        await sink.fail(error)


async def tell_of_cut(sink: Sink, reason: str | None) -> None:
    """Cut a stream off whose client did not read."""
    if reason == EXPIRED:  # `sink.expire` may wait for the client without limit
        await tell(sink, TokenExpiredError("the token has expired", fix="fetch a new one"))
    else:
        await tell(sink, StalledError("the stream was cut off, since the client did not read it", fix=AGAIN))
