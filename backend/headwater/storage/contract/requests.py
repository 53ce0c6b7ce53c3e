"""The interface of requests: work that a command asks the running replicator to do, and its outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headwater.storage.contract.store import Lease


class RequestState(Enum):
    """State of a request. DONE and FAILED are final."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Request:
    """A request. `payload` and `result` are JSON texts whose form depends on the kind; `progress` is a line for a
    person; `created` is in seconds since 1970."""

    id: int
    kind: str
    source: str
    payload: str
    state: RequestState
    progress: str
    result: str
    created: float


class RequestStore(Protocol):
    """A small queue in the store. Finished requests are kept for a day."""

    def submit(self, kind: str, source: str, payload: str) -> int:
        """Queue a request and wake the replicator of `source`. Returns the request's id."""

    def request(self, request: int) -> Request | None: ...

    def open_requests(self, source: str) -> list[Request]:
        """Requests of a source that are WAITING, or RUNNING under a replicator that died, oldest first."""

    def update_request(
        self, lease: Lease, request: int, state: RequestState, *, progress: str = "", result: str = ""
    ) -> None:
        """Set the state of a request, with its progress or result. Raises LeaseLostError."""
