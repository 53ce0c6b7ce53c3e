"""Errors of admin requests. Codes of the published service keep their meaning."""

from __future__ import annotations

from headwater.api.errors import ApiError


class AdminRefusedError(ApiError):
    """The admin token is missing or wrong. The answer does not say which."""

    code = "PSYNC_S2101"

    def __init__(self) -> None:
        super().__init__("Authorization failed", fix="send one of api.tokens as: Authorization: Token …")


class InvalidAdminRequestError(ApiError):
    """The body or a parameter of an admin request has the wrong form."""

    code = "HW_6201"


class NotThereError(ApiError):
    """The version, table or source that an admin request names does not exist."""

    code = "HW_6202"


class TakesTooLongError(ApiError):
    """An admin request takes longer than is allowed. The commands have no such limit."""

    code = "HW_6203"


class TooLargeAnswerError(ApiError):
    """The answer to an admin request is larger than is allowed."""

    code = "HW_6204"


class AdminBusyError(ApiError):
    """Too many admin requests are in progress or waiting."""

    code = "HW_6205"


class InvalidRulesError(ApiError):
    """The sync config in the request has errors."""

    code = "PSYNC_R0001"


class NothingServedError(ApiError):
    """No sync config is active."""

    code = "PSYNC_S4104"


class DeployClosedError(ApiError):
    """The service config names the sync config, so the published route does not deploy another one."""

    code = "PSYNC_S4105"


class DeployBusyError(ApiError):
    """Another version of the sync config is being processed."""

    code = "PSYNC_S4106"
