"""The state of replication from a source: the one answer that commands, endpoints and metrics give.

It is found from facts, each with its age: what the replicator last reported into the store, whether its process is
there, what the store has, and what the source says now.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import msgspec
import orjson
import psycopg

from headwater.bulk.contract import BulkProgress
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import ZERO, Lsn, format_lsn, parse_lsn
from headwater.replication.computed import RefreshState, moved
from headwater.replication.meters import Flow, Totals
from headwater.source.connect import SourceSettings, connect, of_each, source_errors
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import SlotHealth
from headwater.storage.contract.reader import ReplicatorStatus, StoreReader

STALE_SECONDS = 7.0
"""An older fact says nothing about now. Each is refreshed every two seconds."""

_FIRST_REPORT_SECONDS = 30.0  # from taking the lease; it is made at once
_LONG_SECONDS = 5.0  # what has not been stored for longer is a large transaction
_STUCK_SECONDS = 3.0  # while one is stored, the stream is read more often
_READ_SECONDS = 4.0  # the stream is read every two seconds, also when it brings nothing

_CONNECT_SECONDS = 3  # at most, so that metrics are answered in time
_ASKED_AGAIN_SECONDS = 5.0
_SILENT_AGAIN_SECONDS = 60.0


# what a replicator reports


class ReplicationState(Enum):
    """RESYNCING: the stream is followed, and tables are compared with the source beside it. A replicator reports only
    what it tries to do; APPLYING a long transaction, WAITING for a source that sends nothing, and UNKNOWN follow from
    the facts."""

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
        return self not in {ReplicationState.STOPPED, ReplicationState.UNKNOWN}


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
    """A table that is compared with the source, and why. Devices may see its old rows meanwhile."""

    table: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicatorHealth:
    """What a replicator reports. `since` is when the state began, `at` when this was reported, both in seconds since
    1970 by the clock of the replicator's machine. `trouble` is the last error, kept when it is over; see `cause`.
    `findings`, `slot` and `triggers` were seen at `looked_at`. `work` says for a person how far bulk work is; empty
    when there is none; `done` says it in numbers. `totals` count since the replicator's process began. `computed` are
    the computed tables as they stood at `looked_at`."""

    state: ReplicationState
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
    computed: tuple[RefreshState, ...] = ()

    @property
    def cause(self) -> Trouble | None:
        """Why no rows arrive. None when they do, and when somebody stopped the replicator."""
        if self.trouble is None or self.state not in {ReplicationState.RETRYING, ReplicationState.STOPPED}:
            return None
        return self.trouble if self.trouble.at >= self.since else None


def to_json(health: ReplicatorHealth) -> str:
    return orjson.dumps(health).decode()


def from_json(text: str) -> ReplicatorHealth | None:
    """None for an empty text, and for one whose fields have other types or that lacks a field without a default. What
    else a report of another version of headwater lacks has its default."""
    try:
        return msgspec.json.decode(text, type=ReplicatorHealth)
    except msgspec.DecodeError:
        return None


# what follows from it


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the source's log ends now, and in which cluster."""

    lsn: Lsn
    system_id: str


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The state of one source; times are in seconds since 1970 by our clock. `why` says for a person what the state
    comes from, `cause` is the error that stops replication now, `trouble` the last one that did. The replicator
    reported the rest at `at`; it saw findings and slot at `looked_at`.

    The store lacks `lag_bytes` of the source's log, and may lack what was committed up to `lag_seconds` ago; None when
    that is not known, which it was last at `lag_known_at`. `wal_status` says whether the source still has all of it.
    `compared` are the tables that are being compared with the source, `computed` its computed tables; `work` and `done`
    are the progress of bulk work.
    """

    source: str
    state: ReplicationState = ReplicationState.STOPPED
    since: float | None = None
    why: str = ""
    cause: Trouble | None = None
    at: float | None = None
    trouble: Trouble | None = None
    compared: tuple[Compared, ...] = ()
    findings: tuple[Finding, ...] = ()
    slot: SlotHealth | None = None
    looked_at: float | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    lag_known_at: float | None = None
    wal_status: str | None = None
    position: str | None = None
    triggers: bool = False
    work: str = ""
    done: BulkProgress | None = None
    totals: Totals = field(default_factory=Totals)
    computed: tuple[RefreshState, ...] = ()

    @property
    def runs(self) -> bool:
        return self.state.runs

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(orjson.dumps(self))
        return found


def find_status(source: str, heard: ReplicatorStatus, log_end: LogEnd | None, now: float) -> SourceStatus:
    """The status of a source by these facts. `log_end` is None when the source was not asked, or did not answer."""
    health = from_json(heard.text)
    position = None if heard.stored is None else format_lsn(heard.stored)
    if health is None:
        unreported = SourceStatus(source, *_unreported(heard, now), position=position)
        return _with_lag(unreported, Flow(), heard, log_end, now)
    health = _by_our_clock(health, now - heard.age)
    state, since, why = _state(health, heard, now)
    found = SourceStatus(
        source,
        state,
        since,
        why,
        cause=health.cause if state is health.state else None,
        at=health.at,
        trouble=health.trouble,
        compared=health.compared,
        findings=health.findings,
        slot=health.slot,
        looked_at=health.looked_at,
        wal_status=None if health.slot is None else health.slot.wal_status,
        position=position,
        triggers=health.triggers,
        work=health.work if state.runs else "",
        done=health.done if state.runs else None,
        totals=health.totals,
        computed=health.computed,
    )
    return _with_lag(found, health.flow, heard, log_end, now)


def _unreported(heard: ReplicatorStatus, now: float) -> tuple[ReplicationState, float | None, str]:
    """The state of a replicator that has reported nothing, or nothing that we can read: since when, and why."""
    if not heard.runs:
        return ReplicationState.STOPPED, None, _NEVER
    since = None if heard.held is None else now - heard.held
    if heard.held is None or heard.held <= _FIRST_REPORT_SECONDS or heard.text:
        return ReplicationState.STARTING, since, ""
    return ReplicationState.UNKNOWN, since, _SILENT_HOLDER.format(heard.holder)


def _by_our_clock(health: ReplicatorHealth, reported_at: float) -> ReplicatorHealth:
    """The same, as if it had been reported at that time."""
    off = reported_at - health.at
    trouble = health.trouble and replace(health.trouble, at=health.trouble.at + off)
    looked_at = None if health.looked_at is None else health.looked_at + off
    return replace(
        health,
        since=health.since + off,
        at=reported_at,
        trouble=trouble,
        looked_at=looked_at,
        flow=health.flow.moved(off),
        computed=tuple(moved(each, off) for each in health.computed),
    )


def _state(health: ReplicatorHealth, heard: ReplicatorStatus, now: float) -> tuple[ReplicationState, float, str]:
    """The state, since when, and why."""
    if health.state is ReplicationState.STOPPED:
        return ReplicationState.STOPPED, health.since, ""
    if heard.runs is False:
        return ReplicationState.STOPPED, health.at, _GONE
    if heard.age > STALE_SECONDS:
        what = "the replicator runs, but has reported" if heard.runs else "the replicator has reported"
        return ReplicationState.UNKNOWN, health.at, f"{what} nothing since; {_HANGS}"
    return stream_state(health, now)


def stream_state(health: ReplicatorHealth, now: float) -> tuple[ReplicationState, float, str]:
    """The state of a replicator that runs, by what it knows: the state, since when, and why. It is not STREAMING unless
    the store keeps up with the stream."""
    flow = health.flow
    if health.state is ReplicationState.RETRYING and flow.refusal != str(health.trouble):
        return health.state, health.since, flow.refusal  # what the next attempt will meet
    if health.state is not ReplicationState.STREAMING:
        return health.state, health.since, ""

    def lately(at: float | None) -> bool:
        return at is not None and now - at <= STALE_SECONDS

    if flow.unstored_since is not None and now - flow.unstored_since > _LONG_SECONDS:
        goes_on = flow.read_at is not None and now - flow.read_at <= _STUCK_SECONDS
        return (
            ReplicationState.APPLYING,
            flow.unstored_since,
            (_LARGE if goes_on else _STUCK).format(flow.unstored_bytes),
        )
    arrives = lately(flow.brought_at) or lately(flow.caught_up_at)
    if (lately(flow.stored_at) and arrives) or lately(health.since):
        return (ReplicationState.RESYNCING if health.compared else ReplicationState.STREAMING), health.since, ""
    known = max(at for at in (health.since, flow.caught_up_at, flow.brought_at) if at is not None)
    if not lately(flow.asked_at):
        return ReplicationState.UNKNOWN, known, flow.refusal or _SILENT
    if flow.read_at is None or now - flow.read_at > _READ_SECONDS:
        return ReplicationState.WAITING, known, _BLOCKED
    return ReplicationState.WAITING, known, _NOTHING_SENT


_NEVER = "no replicator has run yet"
_SILENT_HOLDER = (
    "{} has held the lease since and has reported nothing: it hangs, or can't write its report; see its log and its "
    "machine, and stop it there if it is not to follow this source"
)
_GONE = "the replicator's process is gone; start Headwater, and see what its log ends with"
_HANGS = "it is paused, hangs, or can't reach the store: see its log and its machine"
_LARGE = "a large transaction is being stored, {:,} bytes so far; devices get it as a whole, so wait"
_STUCK = (
    "{:,} bytes have arrived and are not stored yet: the store is slow, or locked by another process; check for a"
    " second headwater process, and its disk"
)
_BLOCKED = (
    "the replicator has not read the stream since: it hangs, or its store is slow, or locked by another process; check"
    " for a second headwater process, its disk and its log"
)
_SILENT = "the source has not answered since; check the network to it, and that Postgres runs there"
_NOTHING_SENT = (
    "the source has sent nothing since, though its log goes on; it decodes something large that we do not replicate,"
    " or waits for a standby: see pg_stat_replication there, and wait"
)


def _with_lag(
    found: SourceStatus, flow: Flow, heard: ReplicatorStatus, log_end: LogEnd | None, now: float
) -> SourceStatus:
    seconds = _seconds(flow, now) if found.runs else None
    fresh = found.runs and not flow.refusal and flow.asked_at is not None and now - flow.asked_at <= STALE_SECONDS
    if log_end is None and fresh:
        missing = max(0, flow.log_end - max(flow.stored, heard.stored or ZERO))
        return replace(found, lag_bytes=missing, lag_seconds=seconds, lag_known_at=flow.asked_at)
    if log_end is None or heard.stored is None or log_end.system_id != heard.system_id:
        return replace(found, lag_seconds=seconds or None, lag_known_at=flow.caught_up_at)
    missing = max(0, log_end.lsn - heard.stored)
    if not fresh and not seconds:
        seconds = 0.0 if not missing else None if flow.caught_up_at is None else max(0.0, now - flow.caught_up_at)
    return replace(found, lag_bytes=missing, lag_seconds=seconds, lag_known_at=now)


def _seconds(flow: Flow, now: float) -> float | None:
    """How long ago the oldest was written that is known to be missing. 0 when the store had everything last."""
    known = [at for at in (flow.unstored_since, flow.behind_since) if at is not None]
    if known:
        return max(0.0, now - min(known))
    return None if flow.caught_up_at is None else 0.0


_OLD_ROWS, _COMPARED_ROWS = "HW_6008", "HW_6009"
_WHY_OLD = {
    ReplicationState.SNAPSHOT: "it is being read from the beginning",
    ReplicationState.APPLYING: "a large transaction is being stored",
    ReplicationState.WAITING: "it sends nothing",
    ReplicationState.RETRYING: "it can't be followed now",
    ReplicationState.STOPPED: "its replicator is stopped",
    ReplicationState.UNKNOWN: "its replicator is not heard of",
}


@dataclass(frozen=True, slots=True)
class Staleness:
    """Why rows of a source may be old, for anybody: it reveals no host, table or value. `since` is in seconds since
    1970; None where that is not known. `tables` are those concerned, with their schemas; None means all."""

    source: str
    code: str
    why: str
    since: float | None
    tables: frozenset[str] | None = None


def find_staleness(standing: SourceStatus, now: float, seconds: float) -> Staleness | None:
    """Why the rows of a source may be more than `seconds` old, as far as is known. None if they are not, and when no
    replicator has ever reported."""
    if standing.at is None:
        return None
    behind = None if not standing.lag_seconds else now - standing.lag_seconds
    if (why := _WHY_OLD.get(standing.state)) is not None:
        if standing.state is ReplicationState.SNAPSHOT:
            behind = standing.since
        return Staleness(standing.source, _OLD_ROWS, why, behind or standing.lag_known_at)
    if behind is not None and now - behind > seconds:
        return Staleness(standing.source, _OLD_ROWS, "it is behind", behind)
    if standing.compared:
        tables = frozenset(each.table for each in standing.compared)
        return Staleness(standing.source, _COMPARED_ROWS, "its tables are being compared", None, tables)
    return None


class SourceStatuses:
    """Finds the status of sources for a service: from what their replicators report, and where that is old, from the
    sources themselves, each asked every few seconds at most, and less often while it does not answer. For any
    thread."""

    def __init__(self, reader: StoreReader, sources: Sequence[SourceSettings]) -> None:
        self._reader = reader
        self._sources = sources
        self._log_ends: dict[str, tuple[float, LogEnd | None]] = {}  # by name, and when it may be asked again

    def find(self) -> list[SourceStatus]:
        """The status of each source. Raises errors of the store."""
        return of_each(self._sources, self._of)

    def _of(self, source: SourceSettings) -> SourceStatus:
        heard = self._reader.replicator_status(source.name)
        found = find_status(source.name, heard, None, time.time())
        if found.lag_bytes is not None or heard.stored is None:
            return found
        return find_status(source.name, heard, self._log_end(source), time.time())

    def _log_end(self, source: SourceSettings) -> LogEnd | None:
        again_at, log_end = self._log_ends.get(source.name, (0.0, None))
        if time.monotonic() < again_at:
            return log_end
        hasty = replace(source, connect_timeout=_CONNECT_SECONDS, silence_seconds=_CONNECT_SECONDS)
        try:
            with connect(hasty, application_name="headwater status") as conn, source_errors(source):
                log_end = ask_log_end(conn)
        except HeadwaterError:
            log_end = None
        several = len(self._sources) > 1  # whoever asks for all must not always wait for one that is down
        pause = _SILENT_AGAIN_SECONDS if log_end is None and several else _ASKED_AGAIN_SECONDS
        self._log_ends[source.name] = time.monotonic() + pause, log_end
        return log_end


def ask_log_end(conn: psycopg.Connection) -> LogEnd | None:
    """Ask a source. None for a standby, whose log another server writes."""
    row = conn.execute(
        "select case when not pg_is_in_recovery() then pg_current_wal_lsn() end::text,"
        " (select system_identifier::text from pg_control_system())"
    ).fetchone()
    return None if row is None or row[0] is None else LogEnd(parse_lsn(row[0]), row[1])
