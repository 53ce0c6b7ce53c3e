"""The page that Prometheus reads: what it has from the beginning, and who may ask it how."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import headwater.api
from headwater.api.metrics import SECONDS, EndpointCollector, MetricsPage, SourceCollector, StoreSizes, reported_totals
from headwater.replication.status import SourceStatuses
from headwater.source.connect import SourceSettings
from headwater.storage.contract.reader import ReplicatorStatus
from headwater.storage.contract.store import StoreUnreachableError
from headwater.storage.sql.stats import Disk
from tests.support.fix_api import Endpoint
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until

SOURCE = SourceSettings("127.0.0.1", "app", "headwater")
DISK = Disk(rows=1, ops=2, segments=4, lookups=8, other=16, free=32, file=64)


def ask(page: MetricsPage, method: str = "GET", path: str = "/metrics", **headers: str) -> httpx.Response:
    async def asking() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url="http://test") as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(asking())


def samples(response: httpx.Response) -> dict[tuple[str, ...], float]:
    """Values by name and labels' values."""
    families = list(text_string_to_metric_families(response.text))
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


@pytest.fixture
def page(endpoint: Endpoint, memory_store: MemoryStore) -> MetricsPage:
    served = endpoint.server.endpoint
    own = EndpointCollector(endpoint.open_streams, served.traffic, served.requests, served.refusals)
    sizes = StoreSizes(lambda: DISK)
    sizes.known()
    wait_until(lambda: sizes.known() is not None, "the sizes")
    return MetricsPage(own, SourceCollector(SourceStatuses(memory_store, [SOURCE]), reported_totals, sizes))


def test_initial_values(page: MetricsPage) -> None:
    found = samples(ask(page))
    for name in (
        "powersync_data_synced_bytes_total",
        "powersync_data_sent_bytes_total",
        "powersync_operations_synced_total",
        "powersync_concurrent_connections",
        "headwater_commit_to_line_seconds_count",
    ):
        assert found[name,] == 0
    for name in ("data_replicated_bytes", "rows_replicated", "transactions_replicated", "chunks_replicated"):
        assert found[f"powersync_{name}_total", "default"] == 0
    assert found["headwater_requests_refused_total", "PSYNC_S2101"] == 0
    assert found["headwater_requests_total", "/sync/stream", "5xx"] == 0
    assert found["headwater_streams_ended_total", "client not reading"] == 0
    assert ("powersync_replication_lag_seconds", "default") not in found, "it is not known"
    assert found["process_resident_memory_bytes",] > 1e6


REFUSED = [
    "HW_6002", "HW_6003", "HW_6006", "HW_6007", "HW_6020", "HW_6021", "HW_6022", "HW_6023", "HW_6024",
    "HW_6025", "HW_6026", "HW_6027", "HW_6028", "HW_6029", "HW_6030", "HW_6031", "HW_6032",
    "HW_6101", "HW_6102", "HW_6103", "HW_6104", "HW_6131", "HW_6201", "HW_6202", "HW_6203", "HW_6204",
    "HW_6205", "HW_6206", "HW_6207", "HW_6208", "HW_6211", "HW_6212", "HW_8105",
    "PSYNC_R0001", "PSYNC_S2001", "PSYNC_S2002", "PSYNC_S2003", "PSYNC_S2004", "PSYNC_S2101",
    "PSYNC_S2103", "PSYNC_S2104", "PSYNC_S2105", "PSYNC_S2106", "PSYNC_S2202", "PSYNC_S2203", "PSYNC_S2204",
    "PSYNC_S2302", "PSYNC_S2304", "PSYNC_S2305", "PSYNC_S4104", "PSYNC_S4105", "PSYNC_S4106",
]  # fmt: skip


def test_each_code_of_a_refusal_is_counted_from_the_beginning(page: MetricsPage) -> None:
    found = samples(ask(page))
    counted = {
        labels[0]: count for (name, *labels), count in found.items() if name == "headwater_requests_refused_total"
    }
    assert counted == dict.fromkeys(REFUSED, 0)


NO_REFUSALS = {"HW_6001", "HW_6004", "HW_6005", "PSYNC_S2201"}
"""Codes that end a stream normally, or with which a process does not start."""

_RAISED = re.compile(r'^ *code = "(\w+)"|ApiError\([^()]*?code="(\w+)"', re.MULTILINE)


def test_the_api_refuses_with_no_other_code() -> None:
    texts = [path.read_text() for path in Path(headwater.api.__path__[0]).rglob("*.py")]
    raised = {code for text in texts for found in _RAISED.findall(text) for code in found if code}
    assert len(raised) > 20
    assert raised - NO_REFUSALS <= set(REFUSED)


def test_store_sizes(page: MetricsPage) -> None:
    found = samples(ask(page))
    sizes = [found[f"powersync_{part}_storage_size_bytes",] for part in ("replication", "operation", "parameter")]
    assert sizes == [1, 6, 8]


def test_values_after_a_stream_and_a_refusal(page: MetricsPage, endpoint: Endpoint, memory_store: MemoryStore) -> None:
    endpoint.post(token="nonsense")
    memory_store.put(endpoint.bucket("mine", "u1"), "t1")
    memory_store.commit()
    with endpoint.stream() as stream:
        stream.completed()
        found = samples(ask(page))
        assert found["powersync_concurrent_connections",] == 1
    assert found["powersync_operations_synced_total",] == 1
    assert found["powersync_data_sent_bytes_total",] > 100
    assert found["headwater_requests_refused_total", "PSYNC_S2101"] == 1
    assert found["headwater_requests_total", "/sync/stream", "4xx"] == 1
    assert found["headwater_requests_total", "/sync/stream", "2xx"] == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/metrics/", 404), ("GET", "/sync/stream", 404), ("POST", "/metrics", 405)],
)
def test_other_paths_and_methods(page: MetricsPage, method: str, path: str, status: int) -> None:
    assert ask(page, method, path).status_code == status


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "text/plain"),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3", "application/openmetrics-text"),
        ("application/openmetrics-text;version=nonsense", "text/plain"),
        ("\x00;;;,", "text/plain"),
    ],
)
def test_content_type(page: MetricsPage, accept: str, form: str) -> None:
    response = ask(page, accept=accept)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(form)


def test_failing_store_keeps_other_figures(page: MetricsPage, memory_store: MemoryStore) -> None:
    def away(_: str) -> ReplicatorStatus:
        raise StoreUnreachableError("the store is away")

    memory_store.replicator_status = away  # type: ignore[method-assign, assignment]
    found = samples(ask(page))
    assert ("powersync_rows_replicated_total", "default") not in found, "0 would look as if it had begun anew"
    assert found["powersync_operations_synced_total",] == 0


def test_size_measurement_interval() -> None:
    now, measured, took = [0.0], [0], 1.0

    def measure() -> Disk:
        measured[0] += 1
        now[0] += took
        return DISK

    def measured_after(seconds: float) -> int:
        before = measured[0]
        now[0] += seconds
        sizes.known()
        idle()
        return measured[0] - before

    def idle() -> None:
        wait_until(lambda: not [t for t in threading.enumerate() if t.name == "headwater-sizes"], "the measurement")

    sizes = StoreSizes(measure, now=lambda: now[0])
    sizes.known()
    idle()
    assert sizes.known() == DISK
    assert measured_after(SECONDS - 1) == 0
    assert measured_after(100 * took - SECONDS) == 0, "it took a second, so it rests for a hundred"
    assert measured_after(2) == 1
    took = 0.0
    assert measured_after(100) == 1
    assert measured_after(SECONDS - 1) == 0
    assert measured_after(1) == 1


def test_failed_measurement_is_repeated(caplog: pytest.LogCaptureFixture) -> None:
    now, there = [0.0], [False]

    def measure() -> Disk:
        if not there[0]:
            raise StoreUnreachableError("the store is away")
        return DISK

    sizes = StoreSizes(measure, now=lambda: now[0])
    sizes.known()
    wait_until(lambda: "the size of the store is not known" in caplog.text, "the failure to be told")
    there[0] = True

    def known_again() -> bool:
        now[0] += SECONDS
        return sizes.known() == DISK

    wait_until(known_again, "the next measurement")


def test_concurrent_requests_share_one_answer(memory_store: MemoryStore) -> None:
    asked, release = [0], threading.Event()

    def slow(_: str) -> ReplicatorStatus:
        asked[0] += 1
        release.wait(60)
        return ReplicatorStatus()

    memory_store.replicator_status = slow  # type: ignore[method-assign, assignment]
    page = MetricsPage(SourceCollector(SourceStatuses(memory_store, [SOURCE])))

    async def crowd() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(page), base_url="http://test") as client:
            asking = [asyncio.create_task(client.get("/metrics")) for _ in range(50)]
            await asyncio.to_thread(wait_until, lambda: asked[0] > 0, "the first to be answered")
            release.set()
            return await asyncio.gather(*asking)

    assert {response.status_code for response in asyncio.run(crowd())} == {200}
    assert asked[0] == 1
