"""How a source stands is told the same by the command, the endpoint and the metrics: state, cause and remedy."""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headwater.api.metrics import source_metrics
from headwater.embedded.postgres import StopMode
from headwater.oplog.change import RowChange
from headwater.replication.status import ReplicationState
from headwater.replication.stream.fold import Fold
from headwater.replication.tables.live import LiveTable
from headwater.source.triggers import install
from tests.integration.test_source_health import attempts, flows, standing
from tests.support.command import headwater, headwater_here
from tests.support.fix_headwater import WATCHED, Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

OPERATOR = "an admin token of the tests"


def fetch(url: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def answers(port: int) -> bool:
    """Whether the endpoint is ready."""
    try:
        return fetch(f"http://127.0.0.1:{port}/probes/readiness")[0] == 200
    except OSError:
        return False


def figures(text: str) -> dict[str, float]:
    """Metrics of the one source, by name; those that have more labels are left out."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: sample.value for sample in samples if sample.labels == {"source": "default"}}


@dataclass(frozen=True)
class Endpoint:
    """What the endpoint and its metrics say of the source."""

    port: int
    metrics_port: int

    def config(self, deployment: Deployment) -> dict[str, object]:
        return {
            **config_of(deployment, self.port),
            "api": {"tokens": [OPERATOR]},
            "telemetry": {"prometheus_port": self.metrics_port},
            "host": "127.0.0.1",
        }

    def metrics(self) -> str:
        return fetch(f"http://127.0.0.1:{self.metrics_port}/metrics")[1]

    def source(self) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}/api/admin/v1/status"
        (source,) = json.loads(fetch(url, Authorization=f"Token {OPERATOR}")[1])["data"]["sources"]
        found: dict[str, Any] = source
        return found

    def at_once(self) -> tuple[dict[str, Any], dict[str, float]]:
        """Both, of the same moment."""
        while True:
            source, told = self.source(), figures(self.metrics())
            if abs(source["at"] - told["headwater_source_noted_timestamp_seconds"]) < 0.1:
                return source, told


def status_of(folder: Path, config: dict[str, object]) -> dict[str, Any]:
    (folder / "status.json").write_text(json.dumps(config), encoding="utf-8")
    outcome = headwater_here("source", "status", "--json", "-c", folder / "status.json")
    assert outcome.code == 0, outcome.err
    told: dict[str, Any] = json.loads(outcome.out)
    return told


@pytest.mark.long
def test_command_endpoint_and_metrics_agree(
    deploy: Deploy, source_db: SourceDb, launch: Launch, tmp_path: Path
) -> None:
    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(NOTES, intervals=WATCHED)
    install(deployment.settings)
    source_db.execute("alter table notes drop constraint notes_pkey")
    deployment.start()
    wait_until(lambda: [f.code for f in standing(deployment).findings] == ["HW_2017"], "the warning")
    wait_until(
        lambda: standing(deployment).triggers and standing(deployment).state is ReplicationState.STREAMING, "all well"
    )
    wait_until(lambda: (slot := standing(deployment).slot) is not None and slot.active, "a look at the slot since")
    endpoint = Endpoint(free_port(), free_port())
    config = endpoint.config(deployment)
    launch("api", config)

    wait_until(lambda: answers(endpoint.port), "the endpoint")
    url = f"http://127.0.0.1:{endpoint.port}/api/admin/v1/status"
    for wrong in ({}, {"Authorization": "Token wrong"}, {"Authorization": "Basic secret"}):
        code, body = fetch(url, **wrong)
        assert code == 401
        assert json.loads(body)["error"]["code"] == "PSYNC_S2101"
    code, body = fetch(url, Authorization=f"Token {OPERATOR}")
    assert code == 200
    (source,) = json.loads(body)["data"]["sources"]
    assert (source["source"], source["state"], source["cause"]) == ("default", "streaming", None)
    assert source["findings"][0]["code"] == "HW_2017"
    assert source["slot"]["active"]
    metrics = endpoint.metrics()
    assert 'headwater_source_state{source="default",state="streaming"} 1.0' in metrics
    assert 'headwater_source_findings{code="HW_2017",fatal="false",source="default"} 1.0' in metrics
    assert 'powersync_replication_lag_seconds{source="default"}' in metrics
    assert 'headwater_slot_behind_bytes{source="default"}' in metrics
    assert "headwater_slot_left_bytes{" not in metrics, "there is no limit"
    assert "powersync_concurrent_connections 0.0" in metrics
    told = status_of(tmp_path, config)
    assert told["reachable"]
    assert told["event_triggers"]
    assert told["findings"][0]["code"] == "HW_2017"
    assert told["replicator"]["state"] == "streaming"
    assert told["tables"][0]["table"] == "public.notes"
    text = headwater("source", "status", "-c", tmp_path / "status.json").out
    assert "state     streaming since" in text
    deployment.stop()
    wait_until(lambda: '"state":"stopped"' in fetch(url, Authorization=f"Token {OPERATOR}")[1], "the end to be told")
    metrics = endpoint.metrics()
    assert 'headwater_source_state{source="default",state="stopped"} 1.0' in metrics
    text = json.dumps(config).replace(f'"port": {source_db.server.port}', f'"port": {free_port()}')
    (tmp_path / "lost.json").write_text(text, encoding="utf-8")
    outcome = headwater_here("source", "status", "-c", tmp_path / "lost.json")
    assert outcome.code == 1
    assert "does not answer" in outcome.out
    assert "state     stopped since" in outcome.out
    assert "[HW_2001]" in outcome.err


def slot_is_told(endpoint: Endpoint) -> None:
    seen, told = endpoint.at_once()
    for name in ("behind", "held", "left"):
        assert told[f"headwater_slot_{name}_bytes"] == (seen["lag_bytes"] if name == "behind" else seen["slot"][name])
    assert told["headwater_slot_xmin_age"] == seen["slot"]["xmin_age"]
    assert seen["slot"]["left"] > 0
    assert seen["slot"]["held"] > 0
    assert told["headwater_source_errors_in_a_row"] == told["headwater_source_tables_in_resync"] == 0


def absence_is_told(endpoint: Endpoint, config: Path) -> None:
    """Of a source that does not answer."""
    seen, told = endpoint.at_once()
    cause = seen["cause"]
    assert (seen["state"], cause["code"]) == ("retrying", "HW_2001")
    assert "the source database cannot be reached" in cause["what"]
    assert "check that Postgres runs there" in cause["fix"]
    assert told["headwater_source_errors_in_a_row"] == cause["attempts"] > 1
    assert not [name for name in told if name.startswith("headwater_slot_")], "nobody knows now"

    outcome = headwater_here("source", "status", "-c", config)
    assert outcome.code == 1
    reached, state, _, said, attempt, *_ = outcome.out.splitlines()
    assert reached.endswith("does not answer")
    assert state.startswith("state     retrying since ")
    assert said.startswith("cause     [HW_2001] the source database cannot be reached")
    assert "check that Postgres runs there" in said
    assert re.match(r" +attempt \d+ failed .*, \d+ (s|min) ago$", attempt)

    outcome = headwater_here("source", "status", "--json", "-c", config)
    assert outcome.code == 1
    by_script = json.loads(outcome.out)
    assert not by_script["reachable"]
    for trouble in (by_script["error"], by_script["replicator"]["trouble"]):
        assert (trouble["code"], trouble["fix"]) == ("HW_2001", cause["fix"])


def another_source_is_told(source: SourceDb, config: dict[str, Any], other: Path) -> None:
    """A second service on the store, of another database."""
    source.execute("create database elsewhere")
    connection = {**config["replication"]["connections"][0], "database": "elsewhere"}
    other.write_text(json.dumps({**config, "replication": {"connections": [connection]}}), encoding="utf-8")
    outcome = headwater_here("source", "status", "-c", other)
    assert outcome.code == 1
    assert "[HW_4014] the replicator that writes to the store" in outcome.out
    assert "give each service a store of its own" in outcome.out


def test_cause_and_remedy_everywhere(
    source_with: Callable[..., SourceDb], deploy_on: Deploy, launch: Launch, tmp_path: Path
) -> None:
    source = source_with(max_slot_wal_keep_size="128MB")
    source.execute("create table notes (id text primary key); create table other (id text primary key)")
    deployment = deploy_on(source, NOTES, intervals=WATCHED).start()
    endpoint = Endpoint(free_port(), free_port())
    config = endpoint.config(deployment)
    (tmp_path / "status.json").write_text(json.dumps(config), encoding="utf-8")
    launch("api", config)
    wait_until(lambda: answers(endpoint.port), "the endpoint")
    wait_until(lambda: flows(deployment), "the first look")
    with psycopg.connect(source.dsn) as writer:
        writer.execute("insert into other values ('open')")  # for which the comparison's snapshot waits
        source.execute("alter table notes add column filled text default 'x'")
        wait_until(lambda: standing(deployment).state is ReplicationState.RESYNCING, "the comparison")
        assert endpoint.at_once()[1]["headwater_source_tables_in_resync"] == 1
    wait_until(lambda: standing(deployment).state is ReplicationState.STREAMING, "the comparison to end")
    wait_until(lambda: flows(deployment), "a look at the slot since")
    slot_is_told(endpoint)
    another_source_is_told(source, config, tmp_path / "other.json")

    source.connection.close()
    source.server.stop(StopMode.FAST)
    wait_until(lambda: attempts(deployment) > 1, "a second attempt")
    absence_is_told(endpoint, tmp_path / "status.json")

    source.server.start()
    wait_until(lambda: standing(deployment).state is ReplicationState.STREAMING, "rows to flow again")
    seen, told = endpoint.at_once()
    assert seen["cause"] is None
    assert told["headwater_source_errors_in_a_row"] == 0


def test_lost_unread_slot_everywhere(source_with: Callable[..., SourceDb], deploy_on: Deploy, tmp_path: Path) -> None:
    source = source_with(max_slot_wal_keep_size="64MB", max_wal_size="2GB")
    source.execute("create table notes (id text primary key)")
    deployment = deploy_on(source, NOTES, intervals=WATCHED).start()
    deployment.caught_up()
    deployment.close()
    (tmp_path / "status.json").write_text(json.dumps(config_of(deployment, free_port())), encoding="utf-8")
    before = headwater_here("source", "status", "--json", "-c", tmp_path / "status.json")
    assert (before.code, json.loads(before.out)["replicator"]["state"]) == (1, "stopped")
    for _ in range(12):
        source.execute("select pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
    source.execute("checkpoint")
    source.connection.close()
    status = headwater_here("source", "status", "-c", tmp_path / "status.json")
    assert status.code == 1
    assert "state     stopped since" in status.out
    assert "problem   [HW_2040]" in status.out
    assert "is lost: Postgres has removed log that it needs" in status.out
    (missing,) = re.findall(r"^lag +([\d,]+) bytes of the source's log are not in the store", status.out, re.MULTILINE)
    assert int(missing.replace(",", "")) > 11 << 24
    doctor = headwater_here("doctor", "-c", tmp_path / "status.json")
    assert doctor.code == 1
    assert "FAIL  source   [HW_2040]" in doctor.out
    (lacking,) = re.findall(r"WARN  replica  replication is stopped, and ([\d,]+) bytes", doctor.out)
    grown = int(lacking.replace(",", "")) - int(missing.replace(",", ""))
    assert 0 <= grown < 1 << 20, "a server that is idle still logs which transactions run"


def test_large_transaction_is_shown(
    deploy: Deploy, source_db: SourceDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on, apply = threading.Event(), Fold.apply

    def apply_slowly(fold: Fold, changes: Sequence[tuple[LiveTable, RowChange]]) -> None:
        apply(fold, changes)  # so that the flush has written
        going_on.wait(60)

    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(NOTES, intervals=WATCHED).start()
    wait_until(lambda: flows(deployment), "the first look")
    monkeypatch.setattr(Fold, "apply", apply_slowly)
    source_db.execute("insert into notes select n::text, 'large' from generate_series(1, 3000) n")
    wait_until(lambda: standing(deployment).state is ReplicationState.APPLYING, "the transaction to be told")
    (tmp_path / "status.json").write_text(json.dumps(config_of(deployment, free_port())), encoding="utf-8")
    try:
        status = headwater_here("source", "status", "-c", tmp_path / "status.json")
        metrics = {
            (sample.name, sample.labels.get("state")): sample.value
            for family in source_metrics([standing(deployment)])
            for sample in family.samples
        }
    finally:
        going_on.set()
    assert re.search(r"^state     applying since .*[1-9]\.\d s behind: .*are not stored yet", status.out, re.MULTILINE)
    assert metrics["headwater_source_state", "applying"] == 1.0
    assert metrics["powersync_replication_lag_seconds", None] > 1.0
    wait_until(lambda: standing(deployment).state is ReplicationState.STREAMING, "the end to be told")
    assert standing(deployment).lag_bytes is not None
