"""Lists connected devices, ends their streams, and revokes tokens."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from headwater.api.admin.route import AdminSettings
from headwater.api.admin.rules import Text
from headwater.api.streams.service import TOKENS_KEPT, streams_of
from headwater.api.streams.stream import OpenStream
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import Revocation, RevokedKind

CLIENTS = "clients"
"""The name of the question to the processes of an endpoint."""

_STREAMS_KEPT = 3600.0  # seconds within which each process of the endpoint has to read it from the store


class ClientResponse(Struct, frozen=True):
    """A device with an open stream to a process of the endpoint. Times are in seconds since 1970. `operations` and
    `bytes` were sent over this stream; `checkpoint` is the op id of the checkpoint that the device has or is being
    sent."""

    process: int
    user: str
    client: str | None
    user_agent: str | None
    app_metadata: Mapping[str, str]
    connected: float
    token_expires: float
    operations: int
    bytes: int
    buckets: int
    checkpoint: int


class ClientsRequest(Struct, frozen=True):
    """Which of the open streams to list: those with the text `find` in the user or the client, whatever its case; of
    them, from the `offset`-th on, at most `limit`."""

    find: Annotated[str, Meta(max_length=200)] = ""
    offset: Annotated[int, Meta(ge=0, le=2**31)] = 0
    limit: Annotated[int, Meta(ge=0, le=10_000)] | None = None


class ClientsResponse(Struct, frozen=True):
    """The open streams of this endpoint, oldest first. `processes` are those that answered. Other endpoints have
    streams of their own. `total` counts all of them, and `found` those that fit the request."""

    host: str
    processes: tuple[int, ...]
    clients: tuple[ClientResponse, ...]
    total: int
    found: int


class TerminateRequest(Struct, frozen=True):
    """A user, or one client of the user."""

    user: Text
    client: Text | None = None


class RevokeRequest(Struct, frozen=True):
    """Which tokens to revoke: those of a user (`sub`) that were issued until now, all of a session (claim `session_id`
    or `sid`), or the one with this `jti`."""

    kind: Literal["sub", "session", "jti"]
    value: Text


class RevocationsRequest(Struct, frozen=True):
    """Which of the revocations to list: all but the `skip` newest, and of these at most the `limit` newest."""

    skip: Annotated[int, Meta(ge=0, le=2**31)] = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class RevocationsResponse(Struct, frozen=True):
    """Revocations in force, oldest first; `total` counts all. With kind `streams`, only open streams were ended, and
    `value` is the user and the client."""

    revocations: tuple[Revocation, ...]
    total: int


class ClientsHandler:
    """Lists devices, and ends their streams or revokes tokens. Revocations go through the store, to reach every process
    of the endpoint."""

    def __init__(
        self, settings: AdminSettings, reader: StoreReader, connected: Callable[[], Sequence[OpenStream]]
    ) -> None:
        self._settings = settings
        self._reader = reader
        self._connected = connected

    def clients(self, request: ClientsRequest) -> ClientsResponse:
        """List the devices with an open stream to this endpoint, whichever of its processes they are connected to."""
        found = self._everybody()
        text = request.find.casefold()
        fitting = [
            client
            for client in found.clients
            if text in client.user.casefold() or text in (client.client or "").casefold()
        ]
        end = None if request.limit is None else request.offset + request.limit
        clients = tuple(fitting[request.offset : end])
        return ClientsResponse(found.host, found.processes, clients, found.total, len(fitting))

    def users(self) -> list[str]:
        """The user of each open stream."""
        return [client.user for client in self._everybody().clients]

    def _everybody(self) -> ClientsResponse:
        workers = self._settings.workers
        if workers is None:
            answers = [self.own()]
        else:
            answers = [msgspec.json.decode(answer, type=ClientsResponse) for _, answer in workers.ask(CLIENTS)]
        everybody = sorted((client for each in answers for client in each.clients), key=lambda each: each.connected)
        processes = tuple(process for each in answers for process in each.processes)
        return ClientsResponse(socket.gethostname(), processes, tuple(everybody), len(everybody), len(everybody))

    def own(self) -> ClientsResponse:
        """The devices with an open stream to this process. May be called in any thread."""
        own = tuple(map(_client_response, self._connected()))
        return ClientsResponse(socket.gethostname(), (os.getpid(),), own, len(own), len(own))

    def terminate(self, request: TerminateRequest) -> Revocation:
        """End the open streams of a user or a client, in all processes. The device may connect again."""
        value = streams_of(request.user, request.client)
        return self._revoke(RevokedKind.STREAMS, value, _STREAMS_KEPT)

    def revoke(self, request: RevokeRequest) -> Revocation:
        """Refuse tokens that have not expired, and end their streams, in all processes."""
        return self._revoke(RevokedKind(request.kind), request.value, TOKENS_KEPT)

    def revocations(self, request: RevocationsRequest) -> RevocationsResponse:
        """List the revocations in force, of streams and of tokens."""
        found = self._reader.revocations(0)
        end = max(0, len(found) - request.skip)
        begin = 0 if request.limit is None else max(0, end - request.limit)
        return RevocationsResponse(tuple(found[begin:end]), len(found))

    def _revoke(self, kind: RevokedKind, value: str, seconds: float) -> Revocation:
        with self._settings.store() as store:
            return store.revoke(kind, value, seconds)


def _client_response(stream: OpenStream) -> ClientResponse:
    client = stream.client
    return ClientResponse(
        os.getpid(),
        client.user.user_id,
        client.client_id,
        client.user_agent,
        client.app_metadata,
        client.since,
        client.user.expires_at,
        stream.operations,
        stream.bytes,
        stream.buckets,
        stream.op_id,
    )
