"""Errors that have an HTTP status."""

from __future__ import annotations

from typing import ClassVar

from headwater.codes import CODES
from headwater.errors import HeadwaterError

RETRY_SECONDS = 5
"""The default Retry-After of errors with status 429 and 503."""


class ApiError(HeadwaterError):
    """Base class of errors that have an HTTP status."""

    retry_after: ClassVar[int] = RETRY_SECONDS  # where the status is 429 or 503

    @property
    def status(self) -> int:
        """The HTTP status of its code."""
        return CODES[self.code].status


class GoneError(Exception):
    """The client disconnected while something was sent, so it can't be told of any error."""


class UnknownRouteError(ApiError):
    """Nothing is served at this path."""

    code = "PSYNC_S2002"


class ShuttingDownError(ApiError):
    """The process is shutting down. The client should connect again, to another process or the next one."""

    code = "PSYNC_S2003"


class NoActiveConfigError(ApiError):
    """No sync config is active yet: none was deployed, or its first snapshot is still running. The answer says how far
    that is."""

    code = "PSYNC_S2302"

    def __init__(self, progress: str = "") -> None:
        what = "no rows are served before the first snapshot is complete"
        super().__init__(what, fix=progress or "deploy a sync config, or wait for its first snapshot to end")
        self.args = (progress,)  # what pickle replays


class BodyTooLargeError(ApiError):
    """The body of a request is larger than the limit."""

    code = "HW_6002"


class NotAcceptableError(ApiError):
    """The client accepts none of the formats or codings of a stream."""

    code = "HW_6003"


class TooManyRequestsError(ApiError):
    """A limit on concurrent streams or requests is reached. The answer has an empty body, as clients expect."""

    code = "PSYNC_S2304"


class MalformedRequestError(ApiError):
    """The client sent something that is not HTTP/1.1, or a request without exactly one Host header."""

    code = "HW_6021"


class HeadersTooLargeError(ApiError):
    """A request has too many headers, or they are too long."""

    code = "HW_6022"


class UrlTooLongError(ApiError):
    """The URL of a request is too long."""

    code = "HW_6023"


class RequestTimeoutError(ApiError):
    """The headers or the body of a request did not arrive in time."""

    code = "HW_6024"


class TooManyConnectionsError(ApiError):
    """The process has `max_connections` connections."""

    code = "HW_6025"


class TooManyFromAddressError(ApiError):
    """One address has `max_connections_per_address` connections, or requests in progress."""

    code = "HW_6026"


class PipelineError(ApiError):
    """A client sent too many requests on one connection without waiting for answers (pipelining)."""

    code = "HW_6027"


class HandshakeError(ApiError):
    """A request for a websocket is not a valid handshake. The answer says why."""

    code = "HW_6029"


class BrokenWebSocketError(ApiError):
    """A client broke the websocket protocol, or sent a message that is too large."""

    code = "HW_6030"


class TooManyPiecesError(ApiError):
    """A body came in very many small chunks, faster than they are read."""

    code = "HW_6032"


class UnsupportedMediaTypeError(ApiError):
    """The body has a content type that is not supported."""

    code = "PSYNC_S2004"
