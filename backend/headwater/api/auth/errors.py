"""Errors of tokens. At each of these, and at no other, clients drop their credentials."""

from __future__ import annotations

from headwater.api.errors import ApiError


class AuthError(ApiError):
    """The token can't be trusted: it is malformed, of an unknown key, badly signed, or lacks a claim. `what` goes into
    the log, so it contains nothing of the token; `fix` goes only to the client, which has the token."""

    code = "PSYNC_S2101"


class TokenExpiredError(AuthError):
    """The token has expired."""

    code = "PSYNC_S2103"


class TokenRevokedError(AuthError):
    """The token was revoked, by itself, with its session or with its user."""


class JwksError(ApiError):
    """The keys that tokens are signed with can't be fetched from `jwks_uri`. Keys that were fetched before stay in use
    for a while. A device whose key is not known is asked to come again, since its token may be good.

    `where` is for the log only.
    """

    code = "PSYNC_S2204"


class Ipv6RefusedError(JwksError):
    """A host in `jwks_uri` has no address but IPv6 ones, which `block_local_jwks` refuses."""

    code = "PSYNC_S2202"


class AddressRefusedError(JwksError):
    """A host in `jwks_uri` is at addresses that `jwks_reject_ip_ranges` or `block_local_jwks` refuses."""

    code = "PSYNC_S2203"
