"""Every check of `headwater doctor` has a failing result, with what to do about it. Those that need a source are in
tests/integration/test_doctor.py."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import socket
import threading
from collections.abc import Iterable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from unittest import mock

import pytest

from headwater.cli import doctor
from headwater.cli.config import ServiceConfig
from headwater.cli.doctor import (
    Level,
    Result,
    check_config,
    check_files,
    check_keys,
    check_ports,
    check_rules,
    check_source,
    check_spark,
    check_store,
)
from headwater.cli.source.status import StoredState, key_findings
from headwater.config import ConfigSource
from headwater.embedded.java import NoJavaError
from headwater.oplog.lsn import Lsn
from headwater.pipeline.settings import SparkSettings
from headwater.replication.meters import Flow
from headwater.replication.status import ReplicationState, ReplicatorHealth, Trouble, to_json
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.reader import ReplicatorStatus
from headwater.storage.open import open_store
from headwater.storage.sql.stats import MissingRight
from headwater.storage.sqlite.store import SqliteStore
from tests.support.fix_service import free_port
from tests.support.jwks_server import jwks_server
from tests.support.signers import signer
from tests.unit.config.configs import KEY, load

SOURCE = 'replication: {connections: [{uri: "postgresql://app:p@127.0.0.1:PORT/shop", sslmode: disable}]}\n'
AUTH = f"client_auth: {{jwks: {{keys: [{KEY}]}}, audience: [app]}}\n"


def config(tmp_path: Path, *parts: str) -> ServiceConfig:
    """The service config of these parts. Its store is a folder that is not there yet."""
    return load(tmp_path, "storage: {type: sqlite, path: data}\n" + "".join(parts))


def only(results: Iterable[Result]) -> Result:
    """The one result that is not OK."""
    (found,) = [each for each in results if each.level is not Level.OK]
    return found


def assert_said(found: Result, area: str, level: Level, what: str, fix: str) -> None:
    assert (found.area, found.level) == (area, level)
    assert what in found.what
    assert fix in found.fix


def all_ok(results: Iterable[Result]) -> bool:
    return {each.level for each in results} == {Level.OK}


def test_config_mistakes(tmp_path: Path) -> None:
    (tmp_path / "headwater.yaml").write_text("port: x\nstorage: {type: mongodb}\n")
    found, results = check_config(ConfigSource(), {}, tmp_path)
    assert found is None
    assert [each.level for each in results] == [Level.FAIL] * 2
    port, storage = results
    assert_said(port, "config", Level.FAIL, "[HW_7001] port: must be a whole number", "see docs/service-config.md")
    assert_said(storage, "config", Level.FAIL, "storage.type: mongodb storage is not supported", "use the embedded")


def test_config_warning(tmp_path: Path) -> None:
    (tmp_path / "headwater.yaml").write_text("colour: blue\n" + AUTH)
    found, results = check_config(ConfigSource(), {}, tmp_path)
    assert found is not None
    assert_said(only(results), "config", Level.WARN, "colour", "see docs/service-config.md")
    (tmp_path / "headwater.yaml").write_text(AUTH)
    assert all_ok(check_config(ConfigSource(), {}, tmp_path)[1])


def test_sync_config(tmp_path: Path) -> None:
    assert all_ok(check_rules(config(tmp_path))[1])
    named = config(tmp_path, "sync_config: {path: sync.yaml}\n")
    tables, results = check_rules(named)
    assert tables is None
    assert_said(only(results), "rules", Level.FAIL, "sync.yaml", "write the file, or correct sync_config.path")
    (tmp_path / "sync.yaml").write_text("config: {edition: 3}\nstreams: {a: {query: SELEC * FROM t}}\n")
    tables, results = check_rules(named)
    assert tables is None
    assert_said(only(results), "rules", Level.FAIL, "sync.yaml", "see `headwater rules check")
    (tmp_path / "sync.yaml").write_text("config: {edition: 3}\nstreams: {a: {query: 'SELECT id, upper(b) FROM t'}}\n")
    tables, results = check_rules(named)
    assert tables is not None
    assert_said(only(results), "rules", Level.WARN, "[HW_R202]", "AS")
    (tmp_path / "sync.yaml").write_text("config: {edition: 3}\nstreams: {a: {query: SELECT * FROM t}}\n")
    assert all_ok(check_rules(named)[1])


def test_no_key_or_no_audience_of_tokens(tmp_path: Path) -> None:
    none = only(check_keys(config(tmp_path).auth))
    assert_said(none, "tokens", Level.FAIL, "every device is refused", "set client_auth.jwks")
    nobody = only(check_keys(config(tmp_path, AUTH.replace("[app]", "[]")).auth))
    assert_said(nobody, "tokens", Level.FAIL, "every token is refused", "set client_auth.audience")
    assert all_ok(check_keys(config(tmp_path, AUTH).auth))


def test_unreachable_keys(tmp_path: Path) -> None:
    def looked(url: str) -> list[Result]:
        return list(check_keys(config(tmp_path, f"client_auth: {{jwks_uri: '{url}', audience: [app]}}\n").auth))

    away = only(looked(f"http://127.0.0.1:{free_port()}/keys"))
    assert_said(away, "tokens", Level.FAIL, "PSYNC_S2204", "check client_auth.jwks_uri, and the network")
    (named,) = key_findings(
        config(tmp_path, f"client_auth: {{jwks_uri: 'http://127.0.0.1:{free_port()}/keys', audience: [app]}}\n").auth
    )
    assert (named.code, named.fatal) == ("PSYNC_S2204", True)
    assert "http://127.0.0.1:" in named.what
    with jwks_server() as issuer:
        assert_said(
            only(looked(issuer.url())), "tokens", Level.FAIL, "no usable key at", "publish a public signing key"
        )
    with jwks_server(signer("ES256")) as issuer:
        assert all_ok(looked(issuer.url()))


def test_unusable_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = config(tmp_path, SOURCE.replace("PORT", "5432"))
    assert isinstance(there.storage, SqliteAddress)
    assert all_ok(each for each in check_store(there)[1] if each.area == "store")
    open_store(there.storage).open_writer().close()
    assert all_ok(each for each in check_store(there)[1] if each.area == "store")
    open_store(there.storage).seal("moved to the cellar")
    sealed = next(each for each in check_store(there)[1] if each.level is Level.FAIL)
    assert_said(sealed, "store", Level.FAIL, "is sealed: moved to the cellar", "run `headwater store unseal`")
    (Path(there.storage.directory) / "store.db").write_bytes(b"no database" * 1000)
    broken = next(each for each in check_store(there)[1] if each.level is Level.FAIL)
    assert (broken.area, bool(broken.fix)) == ("store", True)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    barred = next(each for each in check_store(there)[1] if "can't be written" in each.what)
    assert_said(barred, "disk", Level.FAIL, str(tmp_path), "right to write there, or set storage.path")


@pytest.mark.parametrize(
    ("free", "level"), [(100 << 20, Level.FAIL), (1 << 30, Level.WARN), (50 << 30, Level.OK)], ids=str
)
def test_full_disk(tmp_path: Path, free: int, level: Level) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=free)
    with mock.patch.object(shutil, "disk_usage", return_value=usage):
        (found,) = [each for each in check_store(config(tmp_path))[1] if each.area == "disk"]
    assert found.level is level
    assert level is Level.OK or "free space, or set storage.path" in found.fix


def test_store_lacks_rights(tmp_path: Path) -> None:
    grant = 'GRANT USAGE, CREATE ON SCHEMA "headwater" TO "app"'
    lacking = [MissingRight("role app may not create tables in the schema headwater of the store", (grant,))]
    with mock.patch.object(SqliteStore, "missing_rights", return_value=lacking):
        kept, results = check_store(config(tmp_path))
    (found,) = [each for each in results if each.level is Level.FAIL]
    assert kept is None
    assert_said(found, "store", Level.FAIL, "role app may not create tables", f"run {grant}")
    assert found.sql == (grant,)
    assert not any(each.level is Level.OK and each.area == "store" for each in results)


def test_replication_that_is_held_up(tmp_path: Path) -> None:
    trouble = Trouble("HW_2001", "the source is away", "db:5432", "wait for it", at=20.0, attempts=3)
    there = config(tmp_path, SOURCE.replace("PORT", "5432"))
    away = replace(there.source(), port=free_port())
    flow = Flow(stored_at=30.0, brought_at=30.0, asked_at=30.0, caught_up_at=29.0, log_end=Lsn(5), stored=Lsn(5))
    for state, age, runs, level, said in (
        (ReplicationState.RETRYING, 0.0, True, Level.FAIL, "[HW_2001] the source is away"),
        (ReplicationState.STREAMING, 0.0, True, Level.OK, "replication is streaming, and 0 bytes of the source's log"),
        (
            ReplicationState.STREAMING,
            60.0,
            True,
            Level.FAIL,
            "unknown (the replicator runs, but has reported nothing since",
        ),
        (
            ReplicationState.STREAMING,
            60.0,
            False,
            Level.WARN,
            "replication is stopped (the replicator's process is gone",
        ),
    ):
        health = ReplicatorHealth(state, since=15.0, at=30.0, trouble=trouble, flow=flow)
        kept = StoredState(ReplicatorStatus(to_json(health), age, runs, Lsn(5)), "slot", None, (), (), (), ())
        with mock.patch.object(type(there), "source", return_value=away):
            (found,) = [each for each in check_source(there, kept, None) if each.area == "replica"]
        assert found.level is level, said
        assert said in found.what
        assert level is Level.OK or found.fix


def test_missing_source(tmp_path: Path) -> None:
    none = only(check_source(config(tmp_path), None, None))
    assert_said(none, "source", Level.FAIL, "no source is configured", "add one: replication: {connect")
    away = config(tmp_path, SOURCE.replace("PORT", str(free_port())))
    assert_said(
        only(check_source(away, None, None)), "source", Level.FAIL, "[HW_2001]", "check that Postgres runs there"
    )


def test_spark_or_java_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    with monkeypatch.context() as without:
        without.setattr(importlib.util, "find_spec", lambda name: None if name == "pyspark" else real(name))
        missing = only(check_spark(SparkSettings()))
        assert_said(missing, "spark", Level.WARN, "enough for `headwater api`, not for `serve`", "[spark]'")
    with mock.patch.object(
        doctor, "java_home", side_effect=NoJavaError("there is no Java from 17 to 25", "", "install it")
    ):
        assert_said(only(check_spark(SparkSettings())), "spark", Level.FAIL, "there is no Java", "install it")


def test_unreachable_spark_master(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "java_home", lambda: Path("/java"))
    with socket.create_server(("127.0.0.1", 0)) as master:
        there = f"127.0.0.1:{master.getsockname()[1]}"
        assert all_ok(check_spark(SparkSettings(master=f"spark://{there}")))
        away = only(check_spark(SparkSettings(master=f"spark://{there},127.0.0.1:{free_port()}")))
    assert_said(away, "spark", Level.FAIL, "does not answer", "start it, or correct spark.master")


class _Headwater(BaseHTTPRequestHandler):
    """What a process of ours answers where only metrics are served."""

    def do_GET(self) -> None:
        body = b"# HELP\nheadwater_up 1\n" if self.path == "/metrics" else b"not found"
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("port", "port: PORT\n"),
        ("api.admin_port", "port: FREE\napi: {tokens: [secret-secret-secret], admin_port: PORT}\n"),
        ("telemetry.prometheus_port", "port: FREE\ntelemetry: {prometheus_port: PORT}\n"),
    ],
)
def test_taken_port(setting: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_ANSWER_SECONDS", 0.5)  # the stranger does not speak

    def looked(port: int, *, running: bool) -> list[Result]:
        written = text.replace("PORT", str(port)).replace("FREE", str(free_port()))
        return list(check_ports(config(tmp_path, AUTH, written), running=running))

    assert all_ok(looked(free_port(), running=False))
    with socket.create_server(("0.0.0.0", 0)) as taken:
        stranger = only(looked(taken.getsockname()[1], running=True))
        assert_said(stranger, "ports", Level.FAIL, str(taken.getsockname()[1]), setting)
    with HTTPServer(("0.0.0.0", 0), _Headwater) as ours:
        threading.Thread(target=ours.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        assert all_ok(looked(ours.server_port, running=True))
        another = only(looked(ours.server_port, running=False))
        ours.shutdown()
    assert_said(another, "ports", Level.WARN, "a Headwater already answers there", f"set another {setting}")


def test_too_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = config(tmp_path, AUTH, "api: {http: {max_connections: 4000}}\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    few = only(check_files(wanted))
    assert_said(few, "machine", Level.WARN, "may open 4,096 files", "set api.http.max_connections lower")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    assert all_ok(check_files(wanted))
