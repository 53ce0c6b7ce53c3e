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
        """The HTTP status of its code; 500 for a code that the table lacks."""
        return CODES[self.code].status if self.code in CODES else 500


class GoneError(Exception):
    """The client disconnected while something was sent, so no error can be sent to it."""


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


class TooManyRequestsError(ApiError):
    """A limit on concurrent streams or requests is reached. The answer has an empty body, as clients expect."""

    code = "PSYNC_S2304"


class TooManyFromAddressError(ApiError):
    """One address has `max_connections_per_address` connections, or requests in progress."""

    code = "HW_6026"


class UnsupportedMediaTypeError(ApiError):
    """The body has a content type that is not supported."""

    code = "PSYNC_S2004"
