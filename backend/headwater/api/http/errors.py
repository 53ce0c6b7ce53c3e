"""Why a request got no further than the door."""

from __future__ import annotations

from headwater.api.errors import ApiError
from headwater.errors import Kind


class MalformedRequestError(ApiError):
    """What came is not HTTP/1.1."""

    code = "HW_6021"
    status = 400


class HeadersTooLargeError(ApiError):
    """The headers of a request are longer, or more, than is read."""

    code = "HW_6022"
    status = 431


class UrlTooLongError(ApiError):
    """The address of a request is longer than is read."""

    code = "HW_6023"
    status = 414


class RequestTimeoutError(ApiError):
    """The headers or the body of a request did not come in time."""

    kind = Kind.RETRY
    code = "HW_6024"
    status = 408


class TooManyConnectionsError(ApiError):
    """The process has as many connections as it may."""

    kind = Kind.RETRY
    code = "HW_6025"
    status = 503


class CrowdedAddressError(ApiError):
    """One address has as many connections, or requests in progress, as it may."""

    kind = Kind.RETRY
    code = "HW_6026"
    status = 429


class PipelineError(ApiError):
    """More requests were sent ahead, on one connection, than are kept waiting."""

    code = "HW_6027"
    status = 400


class UnsupportedMediaTypeError(ApiError):
    """The body is of a content type that is not read."""

    code = "PSYNC_S2004"
    status = 415
