"""How a source stands: the one answer that commands, endpoints and metrics give, found from facts that each have an
age: what the replicator told, whether its process is there, what the store has, and what the source says now."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
import psycopg

from headwater.bulk.contract import BulkProgress
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import ZERO, Lsn, format_lsn, parse_lsn
from headwater.replication.health.figures import Totals
from headwater.replication.health.flow import Flow
from headwater.replication.health.model import Compared, Health, State, Trouble, from_json
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import SlotHealth
from headwater.storage.contract.reader import ReplicatorStatus, StoreReader

STALE_SECONDS = 7.0
"""A fact that is older says nothing of now. Each is seen anew every two seconds."""

_LONG_SECONDS = 5.0  # what has not been stored for longer is a large transaction
_STUCK_SECONDS = 3.0  # while one is stored, the stream is read more often
_READ_SECONDS = 4.0  # the stream is read every two seconds, also when it brings nothing

_ASK_SECONDS = 3  # at most, so that whoever asks for metrics gets them in time
_ASKED_AGAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Where the source's log ends now, and in which cluster."""

    lsn: Lsn
    system_id: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of one source; times are in seconds since 1970 by our clock. `why` says for a person what the state
    comes from, `cause` is the error that stops replication now, `trouble` the last one that did. The replicator told
    the rest at `at`; it saw findings and slot at `looked_at`.

    The store lacks `lag_bytes` of the source's log, and may lack what was committed up to `lag_seconds` ago; None when
    that is not known, which it was last at `lag_known_at`. `wal_status` says whether the source still has all of it.
    `compared` are the tables that are being compared with the source; `work` and `done` are the progress of bulk work.
    """

    source: str
    state: State = State.STOPPED
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

    @property
    def runs(self) -> bool:
        """Whether a replicator is known to be at work, or to try."""
        return self.state.runs

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(orjson.dumps(self))
        return found


def find_standing(source: str, heard: ReplicatorStatus, log_end: LogEnd | None, now: float) -> Standing:
    """How a source stands by these facts. `log_end` is None when the source was not asked, or did not answer."""
    health = from_json(heard.text)
    position = None if heard.stored is None else format_lsn(heard.stored)
    if health is None:
        state, why = (State.STARTING, "") if heard.runs else (State.STOPPED, _NEVER)
        return _with_lag(Standing(source, state, why=why, position=position), Flow(), heard, log_end, now)
    health = _by_our_clock(health, now - heard.age)
    state, since, why = _state(health, heard, now)
    found = Standing(
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
    )
    return _with_lag(found, health.flow, heard, log_end, now)


_NEVER = "no replicator has run yet"


def _by_our_clock(health: Health, told_at: float) -> Health:
    """The same, as if it had been told at that time."""
    off = told_at - health.at
    trouble = health.trouble and replace(health.trouble, at=health.trouble.at + off)
    looked_at = None if health.looked_at is None else health.looked_at + off
    return replace(
        health, since=health.since + off, at=told_at, trouble=trouble, looked_at=looked_at, flow=health.flow.moved(off)
    )


def _state(health: Health, heard: ReplicatorStatus, now: float) -> tuple[State, float, str]:
    """The state, since when, and why."""
    if health.state is State.STOPPED:
        return State.STOPPED, health.since, ""
    if heard.runs is False:
        return State.STOPPED, health.at, _GONE
    if heard.age > STALE_SECONDS:
        what = "the replicator runs, but has told" if heard.runs else "the replicator has told"
        return State.UNKNOWN, health.at, f"{what} nothing since; {_HANGS}"
    return state_of_the_stream(health, now)


_GONE = "the replicator's process is gone; start Headwater, and see what its log ends with"
_HANGS = "it is paused, hangs, or can't reach the store: see its log and its machine"


def state_of_the_stream(health: Health, now: float) -> tuple[State, float, str]:
    """What a replicator that runs can say of itself: the state, since when, and why. A stream that is followed is not
    STREAMING unless the store keeps up with it."""
    flow = health.flow
    if health.state is State.RETRYING and flow.refusal != str(health.trouble):
        return health.state, health.since, flow.refusal  # what the next attempt will meet
    if health.state is not State.STREAMING:
        return health.state, health.since, ""

    def lately(at: float | None) -> bool:
        return at is not None and now - at <= STALE_SECONDS

    if flow.unstored_since is not None and now - flow.unstored_since > _LONG_SECONDS:
        goes_on = flow.read_at is not None and now - flow.read_at <= _STUCK_SECONDS
        return State.APPLYING, flow.unstored_since, (_LARGE if goes_on else _STUCK).format(flow.unstored_bytes)
    arrives = lately(flow.brought_at) or lately(flow.caught_up_at)
    if (lately(flow.stored_at) and arrives) or lately(health.since):
        return (State.RESYNCING if health.compared else State.STREAMING), health.since, ""
    known = max(at for at in (health.since, flow.caught_up_at, flow.brought_at) if at is not None)
    if not lately(flow.asked_at):
        return State.UNKNOWN, known, flow.refusal or _SILENT
    if flow.read_at is None or now - flow.read_at > _READ_SECONDS:
        return State.WAITING, known, _BLOCKED
    return State.WAITING, known, _NOTHING_SENT


_LARGE = "a large transaction is being stored, {:,} bytes so far; devices get it as a whole, so wait"
_STUCK = (
    "{:,} bytes have come, and to store them takes long: the store is slow, or locked by another process; check for a"
    " second headwater process, and its disk"
)
_BLOCKED = (
    "the replicator has not read the stream since: it hangs, or its store is slow, or locked by another process; check"
    " for a second headwater process, its disk and its log"
)
_SILENT = "the source has not answered since; check the network to it, and that Postgres runs there"
_NOTHING_SENT = (
    "the source has sent nothing since, though its log goes on; it decodes something large, which is none of ours, or"
    " waits for a standby: see pg_stat_replication there, and wait"
)


def _with_lag(found: Standing, flow: Flow, heard: ReplicatorStatus, log_end: LogEnd | None, now: float) -> Standing:
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


@dataclass(frozen=True, slots=True)
class _Asked:
    at: float
    log_end: LogEnd | None


class Standings:
    """Finds how sources stand, for whoever asks a service: from what their replicators tell, and where that is old,
    from the sources themselves, which are asked every few seconds at most. For any thread."""

    def __init__(self, reader: StoreReader, sources: Sequence[SourceSettings]) -> None:
        self._reader = reader
        self._sources = sources
        self._asked: dict[str, _Asked] = {}

    def find(self) -> list[Standing]:
        """How each source stands. Raises errors of the store."""
        return [self._of(source) for source in self._sources]

    def _of(self, source: SourceSettings) -> Standing:
        heard = self._reader.replicator_status(source.tag)
        found = find_standing(source.tag, heard, None, time.time())
        if found.lag_bytes is not None or heard.stored is None:
            return found
        return find_standing(source.tag, heard, self._log_end(source), time.time())

    def _log_end(self, source: SourceSettings) -> LogEnd | None:
        asked = self._asked.get(source.tag)
        if asked is None or time.monotonic() - asked.at > _ASKED_AGAIN_SECONDS:
            hasty = replace(source, connect_timeout=_ASK_SECONDS, silence_seconds=_ASK_SECONDS)
            try:
                with connect(hasty, application_name="headwater status") as conn, source_errors(source):
                    log_end: LogEnd | None = ask_log_end(conn)
            except HeadwaterError:
                log_end = None
            self._asked[source.tag] = asked = _Asked(time.monotonic(), log_end)
        return asked.log_end


def ask_log_end(conn: psycopg.Connection) -> LogEnd | None:
    """Ask a source. None for a standby, whose log another server writes."""
    row = conn.execute(
        "select case when not pg_is_in_recovery() then pg_current_wal_lsn() end::text,"
        " (select system_identifier::text from pg_control_system())"
    ).fetchone()
    return None if row is None or row[0] is None else LogEnd(parse_lsn(row[0]), row[1])
