"""What every store promises of revocations: what an operator takes back of users and devices, told to every process of
the endpoint and kept over restarts. What follows from one is the endpoint's to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class RevokedKind(Enum):
    """What is taken back: tokens of a user, of a session or one alone, by what their claims say; or nothing but the
    streams that are open."""

    USER = "sub"
    SESSION = "session"
    TOKEN = "jti"  # noqa: S105 - the name of a claim
    STREAMS = "streams"


@dataclass(frozen=True, slots=True)
class Revocation:
    """`seq` grows with each. It was made at `since` and is forgotten after `until`, in seconds since 1970."""

    seq: int
    kind: RevokedKind
    value: str
    since: float
    until: float


class RevocationStore(Protocol):
    """Any process may revoke."""

    def revoke(self, kind: RevokedKind, value: str, seconds: float) -> Revocation:
        """Keep a revocation for so long, and have readers look. Those that are over are forgotten."""
