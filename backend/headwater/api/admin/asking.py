"""Describes a client and what it would request, so that operators can ask what it would get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from headwater.api.admin.errors import InvalidAdminRequestError
from headwater_rules.results import Subscription, SyncRequest

Text = Annotated[str, Meta(max_length=10_000, pattern=r"^[^\x00]*$")]
"""Text without NUL, which no store can hold."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A stream that the client subscribes to."""

    stream: str
    parameters: Mapping[str, object] | None = None
    override_priority: int | None = None


@dataclass(frozen=True, slots=True)
class Client:
    """A client and its request. `user` is the token's claim sub, `claims` are the other ones, and `parameters` are the
    client parameters."""

    user: Text
    claims: Mapping[str, object] | None = None
    parameters: Mapping[str, object] | None = None
    subscriptions: tuple[Subscribed, ...] = ()
    include_defaults: bool = True


def request_of(client: Client) -> SyncRequest:
    """The request of this client, as the rules take it. Raises InvalidAdminRequestError."""
    claims = dict(client.claims or {})
    if claims.get("sub", client.user) != client.user:
        raise InvalidAdminRequestError("the claim sub names another user than `user`", fix="leave it out")
    return SyncRequest(
        {**claims, "sub": client.user},
        client.parameters,
        client.include_defaults,
        tuple(Subscription(each.stream, each.parameters, each.override_priority) for each in client.subscriptions),
    )
