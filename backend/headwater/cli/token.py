"""`headwater token`: prints a token for development, signed with a secret of the config."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

import click

from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import sign
from headwater.api.auth.settings import ClientAuth
from headwater.api.auth.verify import Verifier
from headwater.errors import HeadwaterError


def run(auth: ClientAuth, user: str, claims: Mapping[str, object], audience: Sequence[str], seconds: int) -> None:
    """Print a token that the service accepts. Raises HW_8501, and AuthError for a token that
    it would refuse."""
    key = next((key for key in auth.keys if isinstance(key.material, bytes)), None)
    if key is None:
        raise HeadwaterError(
            "there is no secret in the config to sign with",
            "client_auth",
            "have the issuer of your keys make the token, or add a secret for development: jwks: {keys: [{kty: oct,"
            " alg: HS256, k: …}]}",
            code="HW_8501",
        )
    now = int(time.time())
    audience = [*audience] or sorted(key.audience or auth.audience)
    aud = audience[0] if len(audience) == 1 else audience
    token = sign({**claims, "sub": user, "aud": aud, "iat": now, "exp": now + seconds}, key)
    asyncio.run(Verifier(KeyRing((key,)), auth.audience).verify(token))
    click.echo(token)
