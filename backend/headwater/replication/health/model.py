"""How a replicator stands, as it tells it itself: into the store, where commands and endpoints hear of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson

from headwater.bulk.contract import BulkProgress
from headwater.errors import HeadwaterError
from headwater.replication.health.figures import Totals
from headwater.replication.health.flow import Flow
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import SlotHealth


class State(Enum):
    """RESYNCING: the stream is followed, and tables are compared with the source beside it. A replicator tells only of
    what it tries to do; that it APPLIES a long transaction, WAITS for a source that sends nothing, or that nothing is
    known of it, is found from the facts (`standing`)."""

    STARTING = "starting"
    SNAPSHOT = "snapshotting"
    STREAMING = "streaming"
    RESYNCING = "re-syncing"
    APPLYING = "applying"
    WAITING = "waiting"
    RETRYING = "retrying"
    STOPPED = "stopped"
    UNKNOWN = "unknown"

    @property
    def runs(self) -> bool:
        """Whether a replicator is known to be at work, or to try."""
        return self not in {State.STOPPED, State.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Trouble:
    """The last error, and how many errors in a row there were by then. `at` is in seconds since 1970."""

    code: str
    what: str
    where: str
    fix: str
    at: float
    attempts: int

    @classmethod
    def of(cls, error: BaseException, at: float, attempts: int) -> Trouble:
        if isinstance(error, HeadwaterError):
            return cls(error.code, error.what, error.where, error.fix, at, attempts)
        return cls("PSYNC_S0001", f"internal error: {type(error).__name__}", "", "see the log, please report", at, 1)

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"[{self.code}] {self.what}{place}" + (f"; {self.fix}" if self.fix else "")


@dataclass(frozen=True, slots=True)
class Compared:
    """A table that is compared with the source, and why. Devices may see its former rows meanwhile."""

    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class Health:
    """`since` is when the state began, `at` when this was told, both in seconds since 1970 by the clock of the
    replicator's machine. `trouble` is the last error, kept when it is over; see `cause`. `findings`, `slot` and
    `triggers` were seen at `looked_at`. `work` says for a person how far bulk work is; empty when there is none; `done`
    says it in numbers. `totals` count since the replicator's process began."""

    state: State
    since: float
    at: float
    trouble: Trouble | None = None
    compared: tuple[Compared, ...] = ()
    findings: tuple[Finding, ...] = ()
    slot: SlotHealth | None = None
    looked_at: float | None = None
    flow: Flow = field(default_factory=Flow)
    triggers: bool = False
    work: str = ""
    done: BulkProgress | None = None
    totals: Totals = field(default_factory=Totals)

    @property
    def cause(self) -> Trouble | None:
        """Why no rows arrive. None when they do, and when somebody stopped the replicator."""
        if self.trouble is None or self.state not in {State.RETRYING, State.STOPPED}:
            return None
        return self.trouble if self.trouble.at >= self.since else None


def to_json(health: Health) -> str:
    return orjson.dumps(health).decode()


def from_json(text: str) -> Health | None:
    """None for an empty text, and for the format of another version of headwater."""
    try:
        found = orjson.loads(text)
        return Health(
            state=State(found["state"]),
            since=found["since"],
            at=found["at"],
            trouble=_maybe(Trouble, found["trouble"]),
            compared=tuple(Compared(**each) for each in found["compared"]),
            findings=tuple(Finding(**{**each, "sql": tuple(each.get("sql", ()))}) for each in found["findings"]),
            slot=_maybe(SlotHealth, found["slot"]),
            looked_at=found["looked_at"],
            flow=Flow(**found["flow"]),
            triggers=found["triggers"],
            work=found["work"],
            done=_maybe(BulkProgress, found["done"]),
            totals=Totals(**found["totals"]),
        )
    except (ValueError, KeyError, TypeError):
        return None


def _maybe(kind: Any, found: Mapping[str, Any] | None) -> Any:
    return None if found is None else kind(**found)
