"""How jobs end: which errors fail a version, which error is reported, and what threads may use."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from headwater.oplog.change import Relation, ReplicaIdentity
from headwater.replication.intervals import PollIntervals
from headwater.replication.jobs import deploy, resync
from headwater.replication.jobs.deploy import Deploy
from headwater.replication.jobs.job import JobContext, JobOutcome, Steps
from headwater.replication.jobs.rekey import Rekey
from headwater.replication.jobs.resync import Resync, ResyncRequest
from headwater.replication.jobs.sampling import SamplingSettings
from headwater.replication.jobs.scheduler import JobQueue, JobScheduler, QueuedJob
from headwater.source.connect import SourceUnreachableError
from headwater.source.rows.copy import TableChangedError
from headwater.source.slot import temporary_slot_name
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import StoreBusyError, StoredTable
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState

if TYPE_CHECKING:
    from headwater.errors import HeadwaterError

YAML = "config: {edition: 3}\nstreams: {s: {auto_subscribe: true, query: SELECT * FROM t}}\n"
VERSION = ConfigVersion(7, "", VersionState.PROCESSING, Origin.COMMAND, 0.0, 0.0, 0.0, "")


def nothing(*_: object, **__: object) -> None:
    """Stands for what a job calls."""


def context_with(**store: object) -> JobContext:
    recording = SimpleNamespace(logs=[], watch=nothing, stop=nothing)
    stream = SimpleNamespace(
        recording=recording,
        fill=nothing,
        mark_clean=nothing,
        joined=SimpleNamespace(begin=nothing, is_busy=False),
        take_in_joined=nothing,
        is_empty=True,
        renew=nothing,
    )
    parts: dict[str, object] = {
        "source": SimpleNamespace(name="default", tag="default"),
        "stream": stream,
    }
    if "tables" in store:
        store["all_tables"] = store["tables"]
    parts["store"] = SimpleNamespace(**store)
    parts["schema"] = SimpleNamespace(hint=nothing)
    parts["peers"] = {"default": "default"}
    parts["bulk"] = SimpleNamespace(preparing=str)
    none = dict.fromkeys(("lease", "connection"))
    return JobContext(**cast("dict[str, Any]", {**parts, **none, "progress": nothing}))


class FailingDeploy(Deploy):
    """Fails in its second step."""

    def __init__(self, context: JobContext, error: HeadwaterError, *, prepared: bool) -> None:
        super().__init__(context, VERSION, 60)
        self._error = error
        self.prepared = prepared

    def describe(self) -> str:
        return ""

    def _run(self) -> Steps[JobOutcome]:
        yield
        raise self._error


@pytest.mark.parametrize(
    ("error", "prepared", "fails"),
    [
        (SourceUnreachableError("too many clients"), False, False),
        (SourceUnreachableError("too many clients"), True, True),
        (TableChangedError("the table changed"), False, True),
    ],
)
def test_errors_that_fail_a_version(
    error: HeadwaterError, prepared: bool, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[VersionState] = []
    context = context_with(
        discard_staged=nothing,
        mark_version=lambda _lease, _id, state, _why: marked.append(state),
        versions=lambda: [VERSION],
        change_counter=lambda: 0,
    )
    scheduler = JobScheduler(context, 60, SamplingSettings(), PollIntervals())
    monkeypatch.setattr(scheduler, "_queue", SimpleNamespace(look_again=nothing, follow=nothing, removing=False))
    for _ in range(8):
        monkeypatch.setattr(
            scheduler, "_current", QueuedJob(FailingDeploy(context, error, prepared=prepared), version=VERSION)
        )
        while scheduler.busy:
            scheduler.step()
        if VersionState.FAILED in marked:
            break
    assert (VersionState.FAILED in marked) is fails


def test_error_while_cleaning_up(caplog: pytest.LogCaptureFixture) -> None:
    def busy(_: object) -> None:
        raise StoreBusyError("the store is locked")

    def unreachable(*_: object, **__: object) -> None:
        raise SourceUnreachableError("gone")

    relation = Relation(1, "public", "t", ReplicaIdentity.DEFAULT, ())
    table = cast("StoredTable", SimpleNamespace(relation=relation, fingerprint=""))
    job = Rekey(context_with(discard_staged=busy, stage_tables=unreachable), (), table)
    with pytest.raises(SourceUnreachableError):
        job.step()
    assert "the store is locked" in caplog.text


def test_active_before_discarding(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def busy(_: object) -> None:
        called.append("discard")
        raise StoreBusyError("the store is locked")

    monkeypatch.setattr(deploy, "in_use", lambda *_: SimpleNamespace(obsolete=(), plans=()))
    monkeypatch.setattr(JobContext, "published", lambda *_: {})
    monkeypatch.setattr(JobContext, "follow", nothing)
    context = context_with(
        activate=lambda *_: called.append("activate"),
        begin_definitions=nothing,
        complete_definitions=lambda _: {},
        known_definitions=dict,
        create_tables=nothing,
        discard_staged=busy,
        retire=nothing,
        tables=lambda _: [],
    )
    job = Deploy(context, replace(VERSION, yaml=YAML), 60)
    with pytest.raises(StoreBusyError):
        job.step()
    assert called == ["activate", "discard"]


def test_snapshot_thread_and_store(monkeypatch: pytest.MonkeyPatch) -> None:
    users: list[threading.Thread] = []

    def slot_of(*_: object) -> str:
        users.append(threading.current_thread())
        return "slot"

    connection = SimpleNamespace(info=SimpleNamespace(server_version=170000), execute=nothing)
    monkeypatch.setattr(resync, "slot_of", slot_of)
    monkeypatch.setattr(resync, "connect", lambda _: nullcontext(connection))
    monkeypatch.setattr(resync, "end_reader", nothing)
    opened: list[str] = []

    class Keeper:
        def __init__(self, _: object, name: str, **__: object) -> None:
            opened.append(name)

        def close(self) -> None:
            """Has nothing to close."""

    monkeypatch.setattr(resync, "SnapshotKeeper", Keeper)
    job = Resync(
        context_with(tables=lambda _: [], mark_resync=nothing),
        ResyncRequest((), ResyncReason(Cause.REPLACED), frozenset()),
    )
    while job.step() is None:
        pass
    deadline = time.monotonic() + 10
    while not opened and time.monotonic() < deadline:
        time.sleep(0.01)
    assert opened == [temporary_slot_name("slot")]
    assert users == [threading.current_thread()]


def test_half_built_definitions_and_an_unlocked_table(monkeypatch: pytest.MonkeyPatch) -> None:
    retired: list[list[str]] = []

    def retire(_lease: object, names: Sequence[str], _limit: int) -> bool:
        retired.append(list(names))
        return False

    relation = Relation(1, "public", "t", ReplicaIdentity.DEFAULT, ())
    busy = StoredTable(4, "default", (relation,), "", ResyncReason(Cause.LOCKED))
    context = context_with(
        complete_definitions=lambda _: {},
        mark_resync=nothing,
        retire=retire,
        source_state=nothing,
        tables=lambda _: [busy],
        left_definitions=list,
        unfinished_definitions=lambda _: ["half.1"],
        versions=lambda: [replace(VERSION, yaml=YAML)],
    )
    monkeypatch.setattr(JobContext, "locked", lambda *_: frozenset())
    followed: list[object] = []
    monkeypatch.setattr(JobContext, "follow", lambda _, plans: followed.append(plans))
    assert JobQueue(context, 60).next() is None
    assert retired[0] == ["half.1"], "nobody tells it what changes from now on"
    assert followed
