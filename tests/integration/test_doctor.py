"""`headwater doctor` names what is wrong, and what to do about it, and finds nothing wrong where all is well."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.cli import doctor as source_checks
from headwater.cli.config import load_config
from headwater.cli.doctor import Level, Result
from headwater.config import ConfigSource
from headwater.embedded.postgres import EmbeddedPostgres
from tests.support.command import headwater_here
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service, config_of, free_port
from tests.support.sync_configs import NOTES

CONFIGURED = {"api": {"http": {"max_connections": 500}}}


@pytest.fixture
def deployed(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    return deploy(NOTES)


def doctor(tmp_path: Path, config: dict[str, Any]) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """The exit code, and what it found by level."""
    path = tmp_path / "headwater.json"
    path.write_text(json.dumps({**CONFIGURED, **config}))
    done = headwater_here("doctor", "-c", path, "--json")
    found = json.loads(done.out)
    assert found["ok"] == (done.code == 0)
    assert all(each["fix"] for each in found["results"] if each["level"] != "OK"), "a finding without a remedy"
    levels = {level: [each for each in found["results"] if each["level"] == level] for level in ("OK", "WARN", "FAIL")}
    return done.code, levels


def areas(found: list[dict[str, str]]) -> set[str]:
    return {each["area"] for each in found}


def test_doctor_all_is_well(deployed: Deployment, tmp_path: Path) -> None:
    deployed.start()
    code, found = doctor(tmp_path, config_of(deployed, free_port()))
    assert (code, found["FAIL"]) == (0, [])
    assert areas(found["OK"]) >= {"config", "rules", "tokens", "store", "disk", "source", "clock", "spark", "ports"}
    assert areas(found["WARN"]) == {"log"}  # the server keeps any amount of log


def test_doctor_for_people(deployed: Deployment, tmp_path: Path) -> None:
    path = tmp_path / "headwater.json"
    path.write_text(json.dumps(config_of(deployed, free_port())))
    done = headwater_here("doctor", "-c", path)
    assert done.code == 1
    assert 'FAIL  source   [PSYNC_S1141] publication "headwater" does not exist' in done.out
    assert "-> run `headwater source prepare`" in done.out


def test_doctor_source_not_replicable(
    deployed: Deployment, postgres_with: Callable[..., EmbeddedPostgres], tmp_path: Path
) -> None:
    server = postgres_with(wal_level="replica", max_replication_slots="1", max_wal_senders="1",
                           max_slot_wal_keep_size="64MB")  # fmt: skip
    config: dict[str, Any] = config_of(deployed, free_port())
    config["replication"]["connections"][0] |= {"port": server.port, "database": "postgres"}
    code, found = doctor(tmp_path, config)
    assert code == 1
    codes = {each["what"][1:].partition("]")[0] for each in found["FAIL"]}
    assert codes >= {"HW_2013", "HW_2014", "HW_2015", "PSYNC_S1141"}
    assert "[HW_R301] no table" in str(found["FAIL"]), "the rules are compared with this database"
    assert "log" in areas(found["OK"])


def test_doctor_source_unreachable(deployed: Deployment, tmp_path: Path) -> None:
    config: dict[str, Any] = config_of(deployed, free_port())
    config["replication"]["connections"][0]["port"] = free_port()
    code, found = doctor(tmp_path, config)
    assert (code, areas(found["FAIL"])) == (1, {"source"})
    assert "HW_2001" in found["FAIL"][0]["what"]


def test_doctor_ports(deployed: Deployment, serve: Callable[..., Service], tmp_path: Path) -> None:
    deployed.start()
    ours = serve(deployed)
    code, found = doctor(tmp_path, config_of(deployed, ours.port))
    assert (code, f"{ours.port}: a Headwater answers there" in str(found["OK"])) == (0, True)
    deployed.close()
    code, found = doctor(tmp_path, config_of(deployed, ours.port))
    assert (code, f"{ours.port}: a Headwater already answers there" in str(found["WARN"])) == (0, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, found = doctor(tmp_path, config_of(deployed, taken.getsockname()[1]))
    assert (code, areas(found["FAIL"])) == (1, {"ports"})


def test_doctor_undeployed_config(deployed: Deployment, source_db: SourceDb, tmp_path: Path) -> None:
    deployed.start()
    source_db.execute("create unlogged table lists (id text primary key)")
    new = (
        NOTES
        + """
  lists:
    auto_subscribe: true
    query: SELECT * FROM lists
  owned:
    auto_subscribe: true
    query: SELECT id, owner FROM notes
"""
    )
    _, found = doctor(tmp_path, config_of(deployed, free_port()) | {"sync_config": {"content": new}})
    told = [(each["area"], each["what"]) for each in (*found["WARN"], *found["FAIL"])]
    assert any(area == "rules" and "owner" in what for area, what in told)
    assert any(area == "source" and "lists" in what for area, what in told)


def test_doctor_unpublished_table_named_once(deployed: Deployment, source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table lists (id text primary key); create publication headwater for table notes")
    new = (
        NOTES
        + """
  lists: {query: SELECT * FROM lists}
  again: {query: SELECT * FROM lists}
"""
    )
    code, found = doctor(tmp_path, config_of(deployed, free_port()) | {"sync_config": {"content": new}})
    told = [each["area"] for each in (*found["WARN"], *found["FAIL"]) if "lists" in each["what"]]
    assert (code, told) == (1, ["source"])


def test_doctor_leaves_newer_store_alone(deployed: Deployment, tmp_path: Path) -> None:
    deployed.start()
    deployed.close()
    with closing(sqlite3.connect(deployed.directory / "store.db", isolation_level=None)) as store:
        store.execute("update meta set value = '99' where key = 'store_format'")
        _, found = doctor(tmp_path, config_of(deployed, free_port()))
        assert "format 99, set by" in str(found["FAIL"])
        assert "or newer" in str(found["FAIL"])
        assert store.execute("select value from meta where key = 'store_format'").fetchall() == [("99",)]


@pytest.mark.parametrize(("off", "level"), [(90.0, "FAIL"), (-90.0, "FAIL"), (10.0, "WARN"), (0.0, "OK")])
def test_doctor_clock_skew(
    off: float, level: str, source_db: SourceDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_checks, "time", SimpleNamespace(time=lambda: time.time() + off))
    (clock,) = [each for each in found_at(source_db, tmp_path) if each.area == "clock"]
    assert clock.level.value == level
    assert level == "OK" or "set their clocks by NTP" in clock.fix


def test_doctor_wal_retention(source_with: Callable[..., SourceDb], source_db: SourceDb, tmp_path: Path) -> None:
    (unlimited,) = [each for each in found_at(source_db, tmp_path) if each.area == "log"]
    assert unlimited.level is Level.WARN
    assert "SET max_slot_wal_keep_size = '50GB'" in unlimited.fix
    source_db.needs(18, "idle_replication_slot_timeout")
    hasty = source_with(idle_replication_slot_timeout="60", max_slot_wal_keep_size="64MB")
    kept, dropped = [each for each in found_at(hasty, tmp_path) if each.area == "log"]
    assert (kept.level, dropped.level) == (Level.OK, Level.WARN)
    assert "ALTER SYSTEM SET idle_replication_slot_timeout = 0" in dropped.fix


def found_at(source: SourceDb, tmp_path: Path) -> list[Result]:
    """What the checks of a source find, of which no sync config is deployed."""
    text = f"replication: {{connections: [{{uri: '{source.uri}', sslmode: disable}}]}}\n"
    (tmp_path / "headwater.yaml").write_text(text)
    return list(source_checks.check_source(load_config(ConfigSource(), {}, tmp_path), None, None))
