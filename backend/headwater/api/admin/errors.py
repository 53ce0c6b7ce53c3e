"""What operators' requests can go wrong with. Codes that are published keep their meaning."""

from __future__ import annotations

from headwater.api.errors import ApiError
from headwater.errors import Kind


class AdminRefusedError(ApiError):
    """No admin token, or a wrong one; the answer does not say which."""

    code = "PSYNC_S2101"
    status = 401

    def __init__(self) -> None:
        super().__init__("Authorization failed", fix="send one of api.tokens as: Authorization: Token …")


class InvalidAdminRequestError(ApiError):
    """The body or a parameter of an operator's request has the wrong form."""

    code = "HW_6201"
    status = 400


class NotThereError(ApiError):
    """What an operator asks about is not there: a version, a table, a source."""

    code = "HW_6202"
    status = 404


class TakesTooLongError(ApiError):
    """What an operator asked for takes longer than a request may; the commands have no such bound."""

    code = "HW_6203"
    status = 422


class TooLargeAnswerError(ApiError):
    """The answer to an operator is larger than a request may ask for."""

    code = "HW_6204"
    status = 422


class AdminBusyError(ApiError):
    """As many operators' requests are answered, and wait, as are allowed at once."""

    kind = Kind.RETRY
    code = "HW_6205"
    status = 429


class InvalidRulesError(ApiError):
    """A sync config that was handed in can't be used."""

    code = "PSYNC_R0001"
    status = 422


class NothingServedError(ApiError):
    """No sync config is active."""

    code = "PSYNC_S4104"
    status = 422


class DeployClosedError(ApiError):
    """The service config names the sync config, so that the published route does not take another."""

    code = "PSYNC_S4105"
    status = 422


class DeployBusyError(ApiError):
    """Another version of the sync config is being processed."""

    kind = Kind.RETRY
    code = "PSYNC_S4106"
    status = 409
