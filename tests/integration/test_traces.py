"""A change on its way through two processes is one trace; nothing is sent unless that is configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from headwater.replication.meters import Figures
from headwater.telemetry.trace_choice import TraceSettings
from headwater.telemetry.traces import Traces
from tests.support import command
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.one_device import sees
from tests.support.otlp_collector import Collector, collecting
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

REFUSING = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
"""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    monkeypatch.setitem(command._CLEAN, "OTEL_BSP_SCHEDULE_DELAY", "100")
    with collecting() as found:
        yield found


def test_commit_flush_and_device_are_one_trace(
    deploy: Deploy, source_db: SourceDb, launch: Launch, collector: Collector
) -> None:
    source_db.execute("create table notes (id text primary key, body text)")
    with closing(Traces(TraceSettings(collector.url))) as traces:
        deployment = deploy(NOTES, figures=Figures(traces.flushed)).start()
        endpoint = launch(
            "api", {**config_of(deployment, port := free_port()), "traces": {"endpoint": f"{collector.url}/"}}
        )
        wait_until(lambda: "startup complete" in endpoint.output, "the endpoint")
        write = partial(source_db.execute, "insert into notes values ('1', 'private words')")
        assert sees(port, write, client_id="phone").rows
        wait_until(lambda: bool(collector.named("deliver") and collector.named("change")), "both processes' spans")
        deployment.stop()
    (whole,), (device,) = collector.named("change"), collector.named("deliver")
    assert device.trace == whole.trace
    assert device.parent == whole.id
    assert whole.began <= whole.ended <= device.ended
    assert device.facts["user.id"] == "ann"
    assert device.facts["headwater.client_id"] == "phone"
    newest = deployment.reader.newest()
    assert newest is not None
    assert whole.facts["headwater.op_id"] == newest.checkpoint.op_id
    assert "private words" not in str(collector.spans)


@pytest.mark.parametrize("name", ["api", "replicate"])
def test_missing_packages_are_named(
    name: str, deploy: Deploy, source_db: SourceDb, launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(REFUSING)
    monkeypatch.setitem(command._CLEAN, "PYTHONPATH", str(tmp_path))
    config = {**config_of(deploy(NOTES), free_port()), "traces": {"endpoint": "http://127.0.0.1:1"}}
    running = launch(name, config)
    assert running.wait() == 1
    assert "[HW_8004] traces are configured, and need OpenTelemetry" in running.output
    assert ".whl[otel]'" in running.output
    assert "Traceback" not in running.output
