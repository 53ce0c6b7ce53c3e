"""All streams of a process, over HTTP and over websockets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from headwater.api.auth.revocations import Revocations
from headwater.api.errors import ApiError
from headwater.api.limits import StreamLimits
from headwater.api.parsing import Parsing
from headwater.api.quota import user_quota
from headwater.api.streams.encoding import WireForm
from headwater.api.streams.session import LeftOutMemory, Resolve, SyncSession
from headwater.api.streams.stream import ClientInfo, OpenStream, Sink, StreamContext, SyncStream
from headwater.storage.contract.store import Revocation, RevokedKind
from headwater.sync.request import BodyLimits, StreamRequest, write_key
from headwater_rules.results import SyncRequest

MAX_AGENT = 300
"""The most characters that are kept of a user agent."""

TOKENS_KEPT = 8 * 86_400.0
"""Seconds for which a revocation of tokens is kept: longer than any token is valid."""

REVOKED = "token revoked"
TERMINATED = "ended by an operator"
SHUTTING_DOWN = "shutting down"
"""Why a stream ends."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A request for a stream, and its client, whose user is verified."""

    body: StreamRequest
    client: ClientInfo
    form: WireForm


class Streams:
    """Opens, lists and ends the streams of the process."""

    def __init__(
        self,
        context: StreamContext,
        resolve: Resolve,
        limits: StreamLimits,
        body_limits: BodyLimits,
        revocations: Revocations,
        parsing: Parsing,
        sources: Sequence[str] | None = None,
    ) -> None:
        self._context = context
        self._resolve = resolve
        self._sources = sources
        self.body_limits = body_limits
        self.parsing = parsing
        self._left_out = LeftOutMemory()
        self._open: set[SyncStream] = set()
        self._revocations = revocations
        self._quota, self.websockets, self.requests = (
            user_quota(what, limits.per_user, limits.streams)
            for what in ("open streams", "open websockets", "requests for streams in progress")
        )
        self._closing = False

    @property
    def count(self) -> int:
        return self._quota.used

    def raise_unless_admitted(self, user_id: str) -> None:
        """Raise ApiError when the user can't open a stream now."""
        if self._closing:
            raise ApiError("the service is shutting down", fix="connect again", code="PSYNC_S2003")
        self._quota.check(user_id)

    def descriptions(self) -> list[OpenStream]:
        """All open streams. May be called in any thread."""
        return [stream.description for stream in self._open.copy()]

    def revoke(self, revocations: Sequence[Revocation]) -> None:
        """Refuse the revoked tokens from their next use on, and end the streams that revocations are about."""
        self._revocations.add(*revocations)
        self._revocations.forget(time.time(), TOKENS_KEPT)
        self._revocations.known()
        for stream in list(self._open):
            client = stream.description.client
            if self._revocations.of(client.user) is not None:
                stream.end(REVOKED)
            elif any(terminates(each, client) for each in revocations):
                stream.end(TERMINATED)

    def begin_shutdown(self, over_seconds: float) -> None:
        """Refuse new streams, and end all open ones normally, at random times within so many seconds."""
        self._closing = True
        self._context.hub.end_all(SHUTTING_DOWN, over_seconds)

    async def serve(self, opening: Opening, sink: Sink) -> None:
        """Run one stream until it ends. Raises errors that occur before `sink.open`. Callers should not keep `opening`,
        which may be large."""
        self._context.hub.raise_unless_active()
        user, stream = opening.client.user, self._stream(opening)
        del opening
        self.raise_unless_admitted(user.user_id)
        with self._quota.hold(user.user_id):
            self._context.hub.join(stream)
            self._open.add(stream)
            try:
                if self._revocations.of(user) is not None:  # revoked after its token was verified
                    stream.end(REVOKED)
                await stream.run(sink)
            finally:
                self._open.discard(stream)
                self._context.hub.leave(stream)

    def _stream(self, opening: Opening) -> SyncStream:
        body, user = opening.body, opening.client.user
        session = SyncSession(
            body.positions,
            SyncRequest(user.claims, body.parameters, body.include_defaults, body.subscriptions),
            write_key(user.user_id, body.client_id),
            self._resolve,
            self._left_out,
            opening.form,
            self._sources,
        )
        return SyncStream(session, opening.client, self._context)


def terminates(revocation: Revocation, client: ClientInfo) -> bool:
    """Whether a revocation of streams ends those of this client. Those of tokens are up to `Revocations`."""
    if revocation.kind is not RevokedKind.STREAMS:
        return False
    user = client.user.user_id
    return revocation.value in {streams_of(user, None), streams_of(user, client.client_id)}


def streams_of(user: str, client: str | None) -> str:
    """The value of a revocation that ends the streams of a user, or of one client of the user."""
    return orjson.dumps([user, client]).decode()
