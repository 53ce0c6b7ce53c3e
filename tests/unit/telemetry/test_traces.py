"""Changes as traces: which are chosen, what is sent of them, and that each process comes to the same ids."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import FlushMark
from headwater.telemetry.trace_choice import Choice, Flushed, TraceSettings, ids_of
from headwater.telemetry.traces import MOST_DEVICES, Traces
from tests.support.otlp_collector import Collector, collecting

SECOND = 1_000_000


def flush(op: int, seconds: float, source: str = "default") -> FlushMark:
    return FlushMark(OpId(op), source, int(seconds * SECOND))


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")  # all is sent at the end
    with collecting() as found:
        yield found


@given(st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(1, 5)), max_size=50), st.integers(1, 600))
def test_processes_choose_the_same(steps: list[tuple[int, int]], per_minute: int) -> None:
    at, flushes, looks = 0, [], []
    for op, (gap, _) in enumerate(steps):
        at += gap
        flushes.append(FlushMark(OpId(op), "default", at))
    one, other = Choice(per_minute), Choice(per_minute)
    chosen = [mark for mark in flushes if one.takes(mark)]
    left = list(flushes)
    for _, size in steps:
        looks.append(left[:size])
        left = left[size:]
    seen = [mark for look in looks if (mark := other.first(look)) is not None]
    assert set(seen) <= set(chosen)
    assert all(any(mark in seen for mark in look) for look in looks if set(look) & set(chosen))


def test_traces_per_minute() -> None:
    choice = Choice(per_minute=60)
    busy = [flush(op, 100 + op / 1000) for op in range(10_000)]
    assert sum(map(choice.takes, busy)) == 10
    assert all(choice.takes(flush(op, op * 7, "quiet")) for op in range(100))


def test_ids() -> None:
    found = [ids_of(flush(op, 1, source)) for op in range(1000) for source in ("a", "b")]
    assert len({trace for trace, _ in found}) == len({span for _, span in found}) == 2000
    assert ids_of(flush(7, 1)) == ids_of(flush(7, 2)), "they follow from source and op id alone"


def replicated(traces: Traces, mark: FlushMark, received: float, stored: float) -> None:
    at = mark.committed_at
    traces.flushed(Flushed(mark, at + received, at + stored, transactions=2, rows=5))


def test_trace_of_a_change(collector: Collector) -> None:
    settings = TraceSettings(collector.url)
    mark = flush(77, time.time() - 946_684_800)
    at = mark.committed_at
    with closing(Traces(settings)) as traces:
        replicated(traces, mark, received=0.01, stored=0.03)
    with closing(Traces(settings)) as traces:  # another process
        assert traces.choose([mark]) == mark
        traces.delivered(mark, at + 0.04, at + 0.05, "ann", "phone")
        traces.delivered(mark, at + 0.04, at + 0.09, "bob", None)
    (whole,), (receive,), (stored,) = (collector.named(name) for name in ("change", "receive", "flush"))
    devices = collector.named("deliver")
    assert {span.trace for span in collector.spans} == {whole.trace}
    assert {span.parent for span in (receive, stored, *devices)} == {whole.id}
    assert whole.parent == b""
    assert len({span.id for span in collector.spans}) == 5
    assert [round(span.began - at, 3) for span in (whole, receive, stored, *devices)] == [0, 0, 0.01, 0.04, 0.04]
    assert [round(span.ended - at, 3) for span in (whole, receive, stored, *devices)] == [0.03, 0.01, 0.03, 0.05, 0.09]
    assert whole.facts == {
        "headwater.source": "default",
        "headwater.op_id": 77,
        "headwater.transactions": 2,
        "headwater.rows": 5,
    }
    assert devices[0].facts.pop("headwater.seconds_since_commit") == pytest.approx(0.05, abs=0.001)
    assert devices[0].facts == {"user.id": "ann", "headwater.client_id": "phone"}
    assert {span.service for span in collector.spans} == {"headwater"}
    assert set(collector.paths) == {"/v1/traces"}


def test_change_for_thousands(collector: Collector) -> None:
    mark = flush(1, time.time() - 946_684_800)
    with closing(Traces(TraceSettings(collector.url))) as traces:
        for number in range(1000):
            traces.delivered(mark, mark.committed_at, mark.committed_at, f"u{number}", None)
    assert len(collector.named("deliver")) == MOST_DEVICES


def test_flush_without_commit(collector: Collector) -> None:
    with closing(Traces(TraceSettings(collector.url))) as traces:
        traces.flushed(Flushed(flush(5, 0), 1.0, 2.0, transactions=0, rows=3))
    assert collector.spans == []


def test_clock_ahead(collector: Collector) -> None:
    mark = flush(1, time.time() - 946_684_800)
    with closing(Traces(TraceSettings(collector.url))) as traces:
        replicated(traces, mark, received=-3, stored=-2)
        traces.delivered(mark, mark.committed_at - 2, mark.committed_at - 1, "ann", None)
    assert len(collector.spans) == 4
    assert all(span.began <= span.ended for span in collector.spans)
    assert collector.named("deliver")[0].facts["headwater.seconds_since_commit"] == 0
