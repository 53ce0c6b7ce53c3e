"""Devices are told which streams show old rows."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, cast

import pytest

from headwater.api.streams.stale import STALE_SECONDS, StaleSources, errors_of, reads_of
from headwater.oplog.lsn import Lsn
from headwater.replication.meters import Flow
from headwater.replication.status import Compared, ReplicationState, ReplicatorHealth, Trouble, to_json
from headwater_rules.compiler.compile import compile_config
from tests.support.memory_store import MemoryStore
from tests.unit.api.by_hand import StartEndpoint

S = ReplicationState
TROUBLE = Trouble("HW_2001", "db.internal does not answer", "db.internal:5432", "", 0.0, 9)


def report(state: S, *, caught_up: float = 0.0, compared: str = "", at: float | None = None) -> str:
    """What a replicator reports that caught up so many seconds ago."""
    now = time.time() if at is None else at
    behind = now - caught_up if caught_up else None
    flow = Flow(
        stored=Lsn(5), read_at=now, brought_at=now, stored_at=now, asked_at=now, log_end=Lsn(5 + bool(caught_up)),
        caught_up_at=now - caught_up, behind_since=behind,
    )  # fmt: skip
    health = ReplicatorHealth(state, now, now, replace(TROUBLE, at=now), flow=flow)
    return to_json(replace(health, compared=(Compared(compared, "added"),) if compared else ()))


def streams(store: MemoryStore, start_endpoint: StartEndpoint) -> dict[str, list[dict[str, object]]]:
    """The errors of each stream, as the first line says."""
    with start_endpoint(store, sources=("default", "crm")).stream("u1") as stream:
        stream.completed()
        lines = cast("list[dict[str, Any]]", stream.client.lines)
        (line,) = (line["checkpoint"] for line in lines if "checkpoint" in line)
        return {each["name"]: each["errors"] for each in line["streams"]}


TWO = """
config: {edition: 3}
streams:
  mine: {auto_subscribe: true, query: SELECT * FROM todos WHERE owner = auth.user_id()}
  shared:
    auto_subscribe: true
    query: SELECT * FROM items WHERE list IN (SELECT list FROM members WHERE member = auth.user_id())
"""


@pytest.mark.parametrize("state", [S.RETRYING, S.STOPPED])
def test_source_that_is_down_is_named(state: S, memory_store: MemoryStore, start_endpoint: StartEndpoint) -> None:
    memory_store.told_by = {"default": report(state, caught_up=300.0)}
    for errors in streams(memory_store, start_endpoint).values():
        (error,) = errors
        assert (error["subscription"], error["code"], error["source"]) == ("default", "HW_6008", "default")
        since = str(error["since"])
        assert abs(time.time() - 300 - _seconds(since)) < 20
        assert since in str(error["message"])
        assert "db.internal" not in str(error)


@pytest.mark.parametrize("told", ["", report(S.STREAMING), report(S.RETRYING, caught_up=STALE_SECONDS - 30)])
def test_nothing_is_said_of_a_source_that_is_well(
    told: str, memory_store: MemoryStore, start_endpoint: StartEndpoint
) -> None:
    memory_store.told_by = {"default": told}
    assert streams(memory_store, start_endpoint) == {"mine": [], "shared": []}


def test_streams_of_other_sources_are_well(memory_store: MemoryStore, start_endpoint: StartEndpoint) -> None:
    memory_store.told_by = {"crm": report(S.RETRYING, caught_up=300.0), "default": report(S.STREAMING)}
    assert streams(memory_store, start_endpoint) == {"mine": [], "shared": []}


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_compared_tables_concern_the_streams_that_read_them() -> None:
    store, clock = MemoryStore(), Clock()
    stale = StaleSources(store, ["default"], clock)
    reads = reads_of(compile_config(TWO).plan)
    store.told_by = {"default": report(S.STREAMING, compared="public.members", at=clock.now)}
    assert stale.find() == ()
    clock.now += STALE_SECONDS + 1
    store.told_by = {"default": report(S.STREAMING, compared="public.members", at=clock.now)}
    errors = errors_of(reads, stale.find())
    assert list(errors) == ["shared"]
    assert errors["shared"][0]["code"] == "HW_6009"
    store.told_by = {"default": report(S.STREAMING, at=clock.now)}
    clock.now += 11
    assert stale.find() == ()


def test_shard_concerns_the_streams_of_its_tag() -> None:
    store, clock = MemoryStore(), Clock()
    store.told_by = {"default/eu": report(S.RETRYING, caught_up=300.0, at=clock.now)}
    stale = StaleSources(store, ["default/eu", "default/us"], clock)
    errors = errors_of(reads_of(compile_config(TWO).plan), stale.find())
    assert [error["source"] for found in errors.values() for error in found] == ["default/eu"] * 2


def test_source_concerns_the_streams_whose_wildcard_means_its_tag() -> None:
    store, clock = MemoryStore(), Clock()
    store.told_by = {"tenant_7": report(S.STOPPED, caught_up=300.0, at=clock.now)}
    rules = """
config: {edition: 3}
streams:
  ours: {query: 'SELECT * FROM "tenant_%".public.todos'}
  others: {query: 'SELECT * FROM "shop_%".public.todos'}
"""
    errors = errors_of(reads_of(compile_config(rules).plan), StaleSources(store, ["tenant_7"], clock).find())
    assert list(errors) == ["ours"]


WILD = """
config: {edition: 3}
streams:
  ours: {query: 'SELECT * FROM "tenant_%".public.todos'}
"""


def test_sources_behind_a_wildcard_have_one_error_without_their_names() -> None:
    store, clock = MemoryStore(), Clock()
    names = [f"tenant_{number}" for number in range(500)]
    store.told_by = {
        name: report(S.STOPPED, caught_up=300.0 + number, at=clock.now) for number, name in enumerate(names)
    }
    stale = StaleSources(store, names, clock).find()
    assert len(stale) == 500
    (error,) = errors_of(reads_of(compile_config(WILD).plan), stale)["ours"]
    assert error["code"] == "HW_6008"
    assert "tenant" not in str(error)
    assert abs(clock.now - 799 - _seconds(str(error["since"]))) < 2, "since the oldest"


def test_many_shards_have_one_error() -> None:
    store, clock = MemoryStore(), Clock()
    names = [f"default/{number}" for number in range(4)]
    reads = reads_of(compile_config(TWO).plan)

    def sources(stale: int) -> list[object]:
        store.told_by = {name: report(S.RETRYING, caught_up=300.0, at=clock.now) for name in names[:stale]}
        return [error.get("source") for error in errors_of(reads, StaleSources(store, names, clock).find())["mine"]]

    assert sources(3) == names[:3]
    assert sources(4) == [None]


class CountingStore(MemoryStore):
    looks = 0

    def replicator_status(self, tag: str):  # type: ignore[no-untyped-def]
        self.looks += 1
        return super().replicator_status(tag)


def test_reports_are_read_now_and_then_not_for_each_device() -> None:
    store, clock = CountingStore(), Clock()
    stale = StaleSources(store, [f"s{n}" for n in range(100)], clock)
    for _ in range(50):
        stale.find()
        clock.now += 0.1
    assert store.looks == 100


def _seconds(iso: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(iso).timestamp()
