"""What every store promises of requests: work that a command asks of the running replicator, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from headwater.storage.contract.store import Lease


class RequestState(Enum):
    """DONE and FAILED are final."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Request:
    """`payload` and `result` are JSON texts whose form the kind decides; `progress` is a line for a person."""

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
        """Ask; the replicator of `source` is woken. Returns the request's id."""

    def request(self, request: int) -> Request | None: ...

    def open_requests(self, source: str) -> list[Request]:
        """Those WAITING, and those RUNNING that a replicator which is no more has left, oldest first."""

    def update_request(
        self, lease: Lease, request: int, state: RequestState, *, progress: str = "", result: str = ""
    ) -> None:
        """Say how a request stands."""
