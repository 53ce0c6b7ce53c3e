"""Why a token was refused. Clients drop their credentials at each of these, and only at these."""

from __future__ import annotations

from headwater.api.errors import ApiError


class AuthError(ApiError):
    """The token can't be trusted: malformed, of an unknown key, badly signed, or missing a claim. `what` goes into the
    log, so it has nothing of the token; `fix` goes to the client, who has it already."""

    code = "PSYNC_S2101"
    status = 401


class TokenExpiredError(AuthError):
    """The token was good until some time that has passed."""

    code = "PSYNC_S2103"


class TokenLifetimeError(AuthError):
    """The token would live longer than its key allows."""

    code = "PSYNC_S2104"


class TokenAudienceError(AuthError):
    """The token is meant for somebody else."""

    code = "PSYNC_S2105"


class TokenMissingError(AuthError):
    """There is no token where one should be."""

    code = "PSYNC_S2106"
