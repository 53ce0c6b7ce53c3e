"""Makes tokens with a shared secret, for development and the demo."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import jwt
from jwt.warnings import InsecureKeyLengthWarning

from headwater.api.auth.keys import Key


def sign(claims: Mapping[str, object], key: Key) -> str:
    """Make a token, signed with a shared secret."""
    assert isinstance(key.material, bytes)
    headers = None if key.kid is None else {"kid": key.kid}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureKeyLengthWarning)  # reading the config warned already
        return jwt.encode(dict(claims), key.material, min(key.algorithms), headers=headers)
