"""Describes open streams and their clients, for the log and for operators."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.api.auth.claims import Principal
from headwater.api.http.requests import RequestName


@dataclass(frozen=True, slots=True)
class Caller:
    """The client of a stream, and since when it is connected, in seconds since 1970."""

    client_id: str | None
    user_agent: str | None
    app_metadata: Mapping[str, str]
    request: RequestName
    since: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Connected:
    """An open stream: its user and client, how many ops and bytes it was sent, the op id of the checkpoint that it has
    or is being sent, and its number of buckets."""

    user: Principal
    caller: Caller
    operations: int
    bytes: int
    op_id: int
    buckets: int
