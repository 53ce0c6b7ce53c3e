"""How a source stands comes from facts with an age, is never better than they are, and is the same by every door."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from headwater.api.metrics import source_metrics
from headwater.oplog.lsn import Lsn
from headwater.replication.health import (
    Compared,
    LogEnd,
    ReplicationState,
    ReplicatorHealth,
    Trouble,
    find_status,
    to_json,
)
from headwater.replication.meters import Flow, FlowMeter
from headwater.storage.contract.reader import ReplicatorStatus

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


HERE, ELSEWHERE = LogEnd(Lsn(276_000_500), "one"), LogEnd(Lsn(600), "another")
CASES = {
    "all is well": Case(ReplicationState.STREAMING, 3600, 0.0, 0),
    "and the source agrees": Case(ReplicationState.STREAMING, 3600, 0.0, 0, log_end=LogEnd(Lsn(500), "one")),
    "tables are compared": Case(
        ReplicationState.RESYNCING,
        3600,
        0.0,
        0,
        told=ReplicatorHealth(
            ReplicationState.STREAMING, NOW - 3600, NOW, compared=(Compared("public.t", "its definition changed"),)
        ),
    ),
    "it catches up": Case(ReplicationState.STREAMING, 3600, 38.0, 400, replace(BEHIND, brought_at=NOW)),
    "a large transaction is applied": Case(
        ReplicationState.APPLYING,
        34,
        38.0,
        400,
        replace(BEHIND, unstored_since=NOW - 34, unstored_bytes=123),
        why="123 bytes so far",
    ),
    "another process has the store locked": Case(
        ReplicationState.APPLYING,
        6,
        6.0,
        0,
        replace(WELL, unstored_since=NOW - 6, unstored_bytes=9, read_at=NOW - 6),
        why="locked by",
    ),
    "a transaction has just begun": Case(
        ReplicationState.STREAMING,
        3600,
        2.0,
        0,
        replace(WELL, brought_at=NOW, unstored_since=NOW - 2, unstored_bytes=1),
    ),
    "the source sends nothing": Case(ReplicationState.WAITING, 40, 38.0, 400, BEHIND, why="has sent nothing"),
    "the stream is not read": Case(
        ReplicationState.WAITING,
        40,
        38.0,
        400,
        replace(BEHIND, read_at=NOW - 39, stored_at=NOW - 39),
        why="not read the stream",
    ),
    "the store was locked before the stream was read again": Case(
        ReplicationState.WAITING,
        40,
        38.0,
        400,
        replace(BEHIND, read_at=NOW - 5),
        why="check for a second headwater process",
    ),
    "the source can't be asked": Case(
        ReplicationState.UNKNOWN,
        40,
        None,
        None,
        replace(WELL, asked_at=NOW - 40, caught_up_at=NOW - 40, refusal="[HW_2001] away"),
        why="[HW_2001] away",
    ),
    "it can't be asked, but changes arrive": Case(
        ReplicationState.STREAMING,
        3600,
        None,
        None,
        replace(WELL, asked_at=NOW - 40, brought_at=NOW - 1, caught_up_at=NOW - 40, refusal="too many connections"),
    ),
    "nothing was told for a while": Case(
        ReplicationState.UNKNOWN, 60, None, None, age=60, why="runs, but has reported nothing since"
    ),
    "the same, and we ask": Case(ReplicationState.UNKNOWN, 60, 61.0, 276_000_000, age=60, log_end=HERE),
    "who knows whether it runs": Case(
        ReplicationState.UNKNOWN, 60, None, None, age=60, runs=None, why="the replicator has reported nothing"
    ),
    "it was killed": Case(ReplicationState.STOPPED, 0.5, None, None, age=0.5, runs=False, why="process is gone; start"),
    "it was killed, and we ask": Case(
        ReplicationState.STOPPED, 600, 601.0, 276_000_000, age=600, runs=False, log_end=HERE
    ),
    "nothing was written since": Case(
        ReplicationState.STOPPED, 600, 0.0, 0, age=600, runs=False, log_end=LogEnd(Lsn(500), "one")
    ),
    "another cluster answers": Case(ReplicationState.STOPPED, 600, None, None, age=600, runs=False, log_end=ELSEWHERE),
    "it was stopped": Case(
        ReplicationState.STOPPED,
        3600 + 600,
        None,
        None,
        told=ReplicatorHealth(ReplicationState.STOPPED, NOW - 3600, NOW),
        age=600,
        runs=False,
    ),
    "the source went away, and something was missing": Case(
        ReplicationState.STREAMING, 3600, 38.0, None, replace(BEHIND, brought_at=NOW - 2, refusal="[HW_2001] away")
    ),
    "the store is full": Case(ReplicationState.RETRYING, 2, 38.0, 400, BEHIND, told=RETRYING),
    "it retried, and was killed": Case(
        ReplicationState.STOPPED, 60, None, None, BEHIND, told=RETRYING, age=60, runs=False
    ),
    "it starts": Case(
        ReplicationState.STARTING,
        1,
        None,
        None,
        Flow(),
        told=ReplicatorHealth(ReplicationState.STARTING, NOW - 1, NOW),
        log_end=None,
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("off", [0.0, 500.0], ids=["same clock", "another clock"])
def test_a_standing_follows_from_the_facts(name: str, off: float) -> None:
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


def test_where_no_replicator_ever_ran() -> None:
    never = find_status("default", ReplicatorStatus(), HERE, NOW)
    assert (never.state, never.lag_seconds, never.lag_bytes) == (ReplicationState.STOPPED, None, None)
    assert never.why == "no replicator has run yet"


def test_what_another_version_told_is_unknown_at_worst() -> None:
    assert find_status("default", ReplicatorStatus("[]", 5.0, runs=True), None, NOW).state is ReplicationState.STARTING
    assert find_status("default", ReplicatorStatus("[]", 5.0, runs=False), None, NOW).state is ReplicationState.STOPPED


def test_lag_is_counted_from_what_is_known_to_be_missing() -> None:
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
