"""Why a token was refused. Clients drop their credentials at each of these, and only at these."""

from __future__ import annotations

from headwater.api.errors import ApiError
from headwater.errors import Kind


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


class TokenRevokedError(AuthError):
    """The token was good until somebody revoked it, its session or its user."""


class JwksError(AuthError):
    """The keys that tokens are signed with can't be fetched from `jwks_uri`; those that are known go on working.

    `where` is for the log only.
    """

    kind = Kind.RETRY
    code = "PSYNC_S2204"


class Ipv6RefusedError(JwksError):
    """A host in `jwks_uri` has no address but IPv6 ones, which `block_local_jwks` refuses."""

    kind = Kind.STOP
    code = "PSYNC_S2202"


class AddressRefusedError(JwksError):
    """A host in `jwks_uri` is at addresses that `jwks_reject_ip_ranges` or `block_local_jwks` refuses."""

    kind = Kind.STOP
    code = "PSYNC_S2203"
