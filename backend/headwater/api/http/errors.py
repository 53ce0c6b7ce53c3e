"""Errors of requests that are refused before the application handles them."""

from __future__ import annotations

from headwater.api.errors import ApiError


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
