"""How a source stands comes from facts with an age, is never better than they are, and is the same by every door."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field, fields, is_dataclass, replace

import pytest

from headwater.api.metrics import source_metrics
from headwater.bulk.contract import BulkProgress, JobKind
from headwater.oplog.lsn import Lsn
from headwater.replication.computed import RefreshState
from headwater.replication.meters import Flow, FlowMeter, Totals
from headwater.replication.status import (
    Compared,
    LogEnd,
    ReplicationState,
    ReplicatorHealth,
    SourceStatuses,
    Trouble,
    find_status,
    from_json,
    to_json,
)
from headwater.source.connect import SourceSettings
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import SlotHealth
from headwater.storage.contract.reader import ReplicatorStatus
from tests.support.memory_store import MemoryStore

NOW = 10_000.0
WELL = Flow(
    stored=Lsn(500),
    read_at=NOW,
    brought_at=NOW - 300,
    stored_at=NOW,
    asked_at=NOW - 1,
    log_end=Lsn(500),
    caught_up_at=NOW - 1,
)
BEHIND = replace(WELL, log_end=Lsn(900), caught_up_at=NOW - 40, behind_since=NOW - 38)
TROUBLE = Trouble("HW_4001", "the disk is full", "", "free space on it", NOW - 2, 3)
FOLLOWS = ReplicatorHealth(ReplicationState.STREAMING, NOW - 3600, NOW)
RETRYING = ReplicatorHealth(ReplicationState.RETRYING, NOW - 2, NOW, TROUBLE, flow=BEHIND)


@dataclass(frozen=True)
class Case:
    """Facts, and what follows from them. `since` and `seconds` are seconds before now; None: not known."""

    state: ReplicationState
    since: float
    seconds: float | None
    missing: int | None
    flow: Flow = field(default_factory=lambda: WELL)
    told: ReplicatorHealth = FOLLOWS
    age: float = 0.0
    runs: bool | None = True
    log_end: LogEnd | None = None
    why: str = ""


S = ReplicationState
HERE, ELSEWHERE, SAME = LogEnd(Lsn(276_000_500), "one"), LogEnd(Lsn(600), "another"), LogEnd(Lsn(500), "one")
COMPARING = replace(FOLLOWS, compared=(Compared("public.t", "its definition changed"),))
APPLYING = replace(BEHIND, unstored_since=NOW - 34, unstored_bytes=123)
LOCKED = replace(WELL, unstored_since=NOW - 6, unstored_bytes=9, read_at=NOW - 6)
BEGUN = replace(WELL, brought_at=NOW, unstored_since=NOW - 2, unstored_bytes=1)
UNASKED = replace(WELL, asked_at=NOW - 40, caught_up_at=NOW - 40, refusal="[HW_2001] away")
UNREAD = replace(BEHIND, read_at=NOW - 39, stored_at=NOW - 39)
WENT_AWAY = replace(BEHIND, brought_at=NOW - 2, refusal="[HW_2001] away")
SILENT, UNSURE = "runs, but has reported nothing since", "the replicator has reported nothing"
STOPPED = ReplicatorHealth(S.STOPPED, NOW - 3600, NOW)
STARTING = ReplicatorHealth(S.STARTING, NOW - 1, NOW)
CASES = {
    "all is well": Case(S.STREAMING, 3600, 0.0, 0),
    "and the source agrees": Case(S.STREAMING, 3600, 0.0, 0, log_end=SAME),
    "tables are compared": Case(S.RESYNCING, 3600, 0.0, 0, told=COMPARING),
    "it catches up": Case(S.STREAMING, 3600, 38.0, 400, replace(BEHIND, brought_at=NOW)),
    "a large transaction is applied": Case(S.APPLYING, 34, 38.0, 400, APPLYING, why="123 bytes so far"),
    "another process has the store locked": Case(S.APPLYING, 6, 6.0, 0, LOCKED, why="locked by"),
    "a transaction has just begun": Case(S.STREAMING, 3600, 2.0, 0, BEGUN),
    "the source sends nothing": Case(S.WAITING, 40, 38.0, 400, BEHIND, why="has sent nothing"),
    "the stream is not read": Case(S.WAITING, 40, 38.0, 400, UNREAD, why="not read the stream"),
    "the store was locked before the stream was read again": Case(
        S.WAITING, 40, 38.0, 400, replace(BEHIND, read_at=NOW - 5), why="check for a second headwater process"
    ),
    "the source can't be asked": Case(S.UNKNOWN, 40, None, None, UNASKED, why="[HW_2001] away"),
    "it can't be asked, but changes arrive": Case(
        S.STREAMING, 3600, None, None, replace(UNASKED, brought_at=NOW - 1, refusal="too many connections")
    ),
    "nothing was told for a while": Case(S.UNKNOWN, 60, None, None, age=60, why=SILENT),
    "the same, and we ask": Case(S.UNKNOWN, 60, 61.0, 276_000_000, age=60, log_end=HERE),
    "who knows whether it runs": Case(S.UNKNOWN, 60, None, None, age=60, runs=None, why=UNSURE),
    "it was killed": Case(S.STOPPED, 0.5, None, None, age=0.5, runs=False, why="process is gone; start"),
    "it was killed, and we ask": Case(S.STOPPED, 600, 601.0, 276_000_000, age=600, runs=False, log_end=HERE),
    "nothing was written since": Case(S.STOPPED, 600, 0.0, 0, age=600, runs=False, log_end=SAME),
    "another cluster answers": Case(S.STOPPED, 600, None, None, age=600, runs=False, log_end=ELSEWHERE),
    "it was stopped": Case(S.STOPPED, 3600 + 600, None, None, told=STOPPED, age=600, runs=False),
    "the source went away, and something was missing": Case(S.STREAMING, 3600, 38.0, None, WENT_AWAY),
    "the store is full": Case(S.RETRYING, 2, 38.0, 400, BEHIND, told=RETRYING),
    "it retried, and was killed": Case(S.STOPPED, 60, None, None, BEHIND, told=RETRYING, age=60, runs=False),
    "it starts": Case(S.STARTING, 1, None, None, Flow(), told=STARTING, log_end=None),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("off", [0.0, 500.0], ids=["same clock", "another clock"])
def test_find_status(name: str, off: float) -> None:
    """The facts are as old as they are, whatever the clock of the machine says that told them."""
    case = CASES[name]
    told = replace(case.told, since=case.told.since + off, at=NOW + off, flow=case.flow.moved(off))
    if told.trouble is not None:
        told = replace(told, trouble=replace(told.trouble, at=told.trouble.at + off))
    heard = ReplicatorStatus(to_json(told), case.age, case.runs, Lsn(500), "one")
    found = find_status("default", heard, case.log_end, NOW)
    assert found.state is case.state
    assert found.since == pytest.approx(NOW - case.since)
    assert found.lag_seconds == pytest.approx(case.seconds)
    assert found.lag_bytes == case.missing
    assert case.why in found.why
    assert (found.cause is not None) == (found.state is ReplicationState.RETRYING)
    assert found.runs == (found.state not in {ReplicationState.STOPPED, ReplicationState.UNKNOWN})
    told_by_metrics = {
        (sample.name, *sample.labels.values()): sample.value
        for family in source_metrics([found])
        for sample in family.samples
    }
    assert told_by_metrics["headwater_source_state", "default", found.state.value] == 1.0
    assert sum(value for name, value in told_by_metrics.items() if name[0] == "headwater_source_state") == 1.0
    assert told_by_metrics.get(("powersync_replication_lag_seconds", "default")) == found.lag_seconds
    assert told_by_metrics.get(("headwater_slot_behind_bytes", "default")) == found.lag_bytes


def test_no_replicator_ever_ran() -> None:
    never = find_status("default", ReplicatorStatus(), HERE, NOW)
    assert (never.state, never.lag_seconds, never.lag_bytes) == (ReplicationState.STOPPED, None, None)
    assert never.why == "no replicator has run yet"


def test_holder_of_the_lease_that_never_reports() -> None:
    heard = ReplicatorStatus(runs=True, holder="far:12", held=5.0)
    assert find_status("default", heard, None, NOW).state is ReplicationState.STARTING
    found = find_status("default", replace(heard, held=600.0), None, NOW)
    assert (found.state, found.since, found.runs) == (ReplicationState.UNKNOWN, NOW - 600, False)
    assert found.why.startswith("far:12 has held the lease since and has reported nothing")
    ended = find_status("default", replace(heard, held=600.0, runs=False), None, NOW)
    assert ended.state is ReplicationState.STOPPED


def test_report_of_another_version() -> None:
    assert find_status("default", ReplicatorStatus("[]", 5.0, runs=True), None, NOW).state is ReplicationState.STARTING
    assert find_status("default", ReplicatorStatus("[]", 5.0, runs=False), None, NOW).state is ReplicationState.STOPPED


def test_flow_meter() -> None:
    now = [100.0]

    def at(seconds: float) -> None:
        now[0] = seconds

    meter = FlowMeter(lambda: now[0])
    meter.begun(Lsn(10))
    meter.asked(Lsn(10), 100.0)
    assert (meter.flow().caught_up_at, meter.flow().behind_since) == (100.0, None)
    at(102.0)
    meter.asked(Lsn(30), 102.0)
    assert (meter.flow().caught_up_at, meter.flow().behind_since) == (100.0, 102.0)
    at(103.0)
    meter.received(500)
    meter.settled(Lsn(10), everything=False, committed_at=0.0)
    at(104.0)
    meter.received(700)
    meter.asked(Lsn(80), 104.0)
    meter.settled(Lsn(10), everything=False, committed_at=0.0)
    assert (meter.flow().unstored_since, meter.flow().unstored_bytes, meter.flow().behind_since) == (103.0, 1200, 102.0)
    at(105.0)
    meter.received(300)
    meter.settled(Lsn(50), everything=False, committed_at=60.0)
    flow = meter.flow()
    assert (flow.caught_up_at, flow.unstored_since, flow.unstored_bytes) == (102.0, 105.0, 0)
    assert flow.behind_since == 60.0, "it catches up, and has come to what was committed then"
    at(116.0)
    assert meter.flow().behind_since == 104.0, "for a while it has come to nothing"
    meter.received(0)
    meter.settled(Lsn(80), everything=True, committed_at=60.0)
    flow = meter.flow()
    assert (flow.caught_up_at, flow.behind_since, flow.unstored_since, flow.stored_at) == (104.0, None, None, 116.0)
    meter.begun(Lsn(80))
    meter.not_asked("why")
    assert (meter.flow().refusal, meter.flow().asked_at) == ("why", 104.0)


FILLED = ReplicatorHealth(
    ReplicationState.RETRYING,
    NOW - 2.5,
    NOW + 0.5,
    TROUBLE,
    (Compared("public.t", "its definition changed"),),
    (Finding("HW_2045", "what", "fix", fatal=False, sql=("select 1",), since=NOW - 0.5, about="it"),),
    SlotHealth("slot", "reserved", active=True, behind=1, held=2, left=3, limit=4, xmin_age=5, xmin_limit=6),
    NOW - 3.5,
    Flow(Lsn(1), 2.5, 3.5, 4.5, 5.5, 6, 7.5, Lsn(8), "refused", 9.5, 10.5),
    triggers=True,
    work="half",
    done=BulkProgress(1, 2, 3, 4, JobKind.MERGE, over=True),
    totals=Totals(1, 2, 3, 4),
    computed=(
        RefreshState(
            "t",
            "d",
            "0/1",
            NOW,
            1.5,
            10,
            1,
            "HW_2701",
            "what",
            "fix",
            NOW,
            (("public", "o"),),
            ("public.o",),
            "v",
            "d",
            1,
            NOW,
        ),
    ),
)


def test_filled_report_is_read_again() -> None:
    assert from_json(to_json(FILLED)) == FILLED
    assert unfilled(FILLED) == []


def unfilled(given: object, path: str = "") -> list[str]:
    """The fields that have their default, which a report could lack unnoticed."""
    if isinstance(given, tuple):
        return [each for entry in given for each in unfilled(entry, path)]
    if not is_dataclass(given) or isinstance(given, type):
        return []
    empty = [f"{path}{each.name}" for each in fields(given) if getattr(given, each.name) == each.default]
    return empty + [name for each in fields(given) for name in unfilled(getattr(given, each.name), f"{each.name}.")]


class FollowedStore(MemoryStore):
    """Sources that were followed once, by replicators that are gone."""

    def replicator_status(self, tag: str) -> ReplicatorStatus:
        return ReplicatorStatus(stored=Lsn(5), system_id="one")


def test_sources_that_are_silent_are_asked_at_once_and_seldom() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        port = silent.getsockname()[1]
        sources = [SourceSettings("127.0.0.1", "app", "headwater", port=port, tag=f"s{n}") for n in range(20)]
        statuses = SourceStatuses(FollowedStore(), sources)
        began = time.monotonic()
        assert len(statuses.find()) == 20
        assert time.monotonic() - began < 15, "not one after the other, each for three seconds"
        began = time.monotonic()
        assert [each.state for each in statuses.find()] == [S.STOPPED] * 20
        assert time.monotonic() - began < 1
