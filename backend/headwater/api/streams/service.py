"""All streams of a process, over HTTP and over websockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.api.auth.claims import Principal
from headwater.api.auth.revocations import Revocations
from headwater.api.errors import ShuttingDownError
from headwater.api.http.requests import RequestName
from headwater.api.parsing import Parsing
from headwater.api.quota import user_quota
from headwater.api.streams.admission import StreamLimits
from headwater.api.streams.connected import Caller, Connected
from headwater.api.streams.dialogue import Dialogue, Resolver
from headwater.api.streams.encoding import WireForm
from headwater.api.streams.hub import Hub
from headwater.api.streams.left_out import LeftOutMemory
from headwater.api.streams.revoking import REVOKED, TERMINATED, terminates
from headwater.api.streams.sink import Sink
from headwater.api.streams.stream import Stream
from headwater.api.streams.threads import StoreThreads
from headwater.api.streams.traffic import Traffic
from headwater.storage.contract.revocations import Revocation
from headwater.sync.request import BodyLimits, StreamRequest, write_key
from headwater_rules.results import SyncRequest

MAX_AGENT = 300
"""The most characters that are kept of a user agent."""

SHUTTING_DOWN = "shutting down"


@dataclass(frozen=True, slots=True)
class Opening:
    """A request for a stream, and its verified user."""

    asked: StreamRequest
    user: Principal
    user_agent: str | None
    form: WireForm
    request: RequestName


class Streams:
    """Opens, lists and ends the streams of the process."""

    def __init__(
        self,
        threads: StoreThreads,
        hub: Hub,
        resolver: Resolver,
        traffic: Traffic,
        limits: StreamLimits,
        asked: BodyLimits,
        revocations: Revocations,
        parsing: Parsing,
    ) -> None:
        self._threads = threads
        self._hub = hub
        self._resolver = resolver
        self._traffic = traffic
        self._limits = limits
        self.asked = asked
        """Limits on the lists in a request."""
        self.parsing = parsing
        self._left_out = LeftOutMemory()
        self._open: set[Stream] = set()
        self._revocations = revocations
        self._quota, self.websockets, self.requests = (
            user_quota(what, limits.per_user, limits.streams)
            for what in ("open streams", "open websockets", "requests for streams in progress")
        )
        self._closing = False

    @property
    def count(self) -> int:
        """How many streams are open."""
        return self._quota.used

    def raise_unless_admitted(self, user_id: str) -> None:
        """Raise ShuttingDownError or TooManyRequestsError when the user can't open a stream now."""
        if self._closing:
            raise ShuttingDownError("the service is shutting down", fix="connect again")
        self._quota.check(user_id)

    def connected(self) -> list[Connected]:
        """All open streams. May be called in any thread."""
        return [stream.connected for stream in self._open.copy()]

    def revoke(self, revocations: Sequence[Revocation]) -> None:
        """End the streams that these revocations are about, and those whose token is revoked now."""
        for stream in list(self._open):
            connected = stream.connected
            if self._revocations.of(connected.user) is not None:
                stream.end(REVOKED)
            elif any(terminates(each, connected) for each in revocations):
                stream.end(TERMINATED)

    def begin_shutdown(self, over_seconds: float) -> None:
        """Refuse new streams, and end all open ones normally, at random times within so many seconds."""
        self._closing = True
        self._hub.end_all(SHUTTING_DOWN, over_seconds)

    async def serve(self, opening: Opening, sink: Sink) -> None:
        """Run one stream until it ends. Raises errors that occur before `sink.open`. Callers should not keep `opening`,
        which may be large."""
        self._hub.raise_unless_active()
        user, stream = opening.user, self._stream(opening)
        del opening
        self.raise_unless_admitted(user.user_id)
        with self._quota.hold(user.user_id):
            self._hub.join(stream)
            self._open.add(stream)
            try:
                if self._revocations.of(user) is not None:  # revoked after its token was verified
                    stream.end(REVOKED)
                await stream.run(sink)
            finally:
                self._open.discard(stream)
                self._hub.leave(stream)

    def _stream(self, opening: Opening) -> Stream:
        asked, user = opening.asked, opening.user
        dialogue = Dialogue(
            asked.positions,
            SyncRequest(user.claims, asked.parameters, asked.include_defaults, asked.subscriptions),
            write_key(user.user_id, asked.client_id),
            self._resolver,
            self._left_out,
            opening.form,
        )
        agent = opening.user_agent and opening.user_agent[:MAX_AGENT]
        caller = Caller(asked.client_id, agent, asked.app_metadata, opening.request)
        return Stream(
            dialogue, opening.form, user, caller, self._threads, self._hub, self._traffic, self._limits.stalled_seconds
        )
