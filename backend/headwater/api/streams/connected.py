"""Who is at the other end of an open stream: for the log, and for operators."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.api.auth.claims import Principal
from headwater.api.http.requests import RequestName


@dataclass(frozen=True, slots=True)
class Caller:
    """What is at the other end, and since when, in seconds since 1970."""

    client_id: str | None
    user_agent: str | None
    app_metadata: Mapping[str, str]
    request: RequestName
    since: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Connected:
    """An open stream: whose, how many ops and bytes it was sent, and the checkpoint that it has or is being sent."""

    user: Principal
    caller: Caller
    operations: int
    bytes: int
    op_id: int
    buckets: int
