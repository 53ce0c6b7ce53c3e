"""Errors that have an HTTP status."""

from __future__ import annotations

from typing import ClassVar

from headwater.errors import HeadwaterError, Kind

RETRY_SECONDS = 5
"""The default Retry-After of errors with status 429 and 503."""


class ApiError(HeadwaterError):
    """Base class of errors that have an HTTP status."""

    kind = Kind.REJECT
    status: ClassVar[int] = 400
    retry_after: ClassVar[int] = RETRY_SECONDS  # where the status is 429 or 503


class GoneError(Exception):
    """The client disconnected while something was sent, so it can't be told of any error."""


class UnknownRouteError(ApiError):
    """Nothing is served at this path."""

    code = "PSYNC_S2002"
    status = 404


class ShuttingDownError(ApiError):
    """The process is shutting down. The client should connect again, to another process or the next one."""

    kind = Kind.RETRY
    code = "PSYNC_S2003"
    status = 503


class NoActiveConfigError(ApiError):
    """No sync config is active yet: none was deployed, or its first snapshot is still running. The answer says how far
    that is."""

    kind = Kind.RETRY
    code = "PSYNC_S2302"
    status = 503

    def __init__(self, progress: str = "") -> None:
        what = "no rows are served before the first snapshot is complete"
        super().__init__(what, fix=progress or "deploy a sync config, or wait for its first snapshot to end")
        self.args = (progress,)  # what pickle replays


class BodyTooLargeError(ApiError):
    """The body of a request is larger than the limit."""

    code = "HW_6002"
    status = 413


class NotAcceptableError(ApiError):
    """The client accepts none of the formats or codings of a stream."""

    code = "HW_6003"
    status = 406


class TooManyRequestsError(ApiError):
    """A limit on concurrent streams or requests is reached. The answer has an empty body, as clients expect."""

    kind = Kind.RETRY
    code = "PSYNC_S2304"
    status = 429
