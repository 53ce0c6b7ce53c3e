"""Commands that existing scripts call: migrate, teardown, test-connection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import headwater.cli.powersync.teardown as commands
from headwater.cli.config import load_config
from headwater.cli.powersync.teardown import teardown
from headwater.config import ConfigSource
from headwater.errors import HeadwaterError
from headwater.storage.contract.store import LeaseHeldError
from headwater.storage.open import open_store
from tests.support.command import headwater_here
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import config_of
from tests.support.sync_configs import NOTES


@pytest.fixture
def deployed(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    return deploy(NOTES).start()


def slots(source: SourceDb) -> list[tuple[object, ...]]:
    return source.fetch("select slot_name from pg_replication_slots where database = current_database()")


@pytest.fixture
def config(deployed: Deployment, tmp_path: Path) -> Path:
    path = tmp_path / "headwater.json"
    path.write_text(json.dumps(config_of(deployed, 0)), encoding="utf-8")
    return path


def test_teardown_removes_slot_and_store(deployed: Deployment, source_db: SourceDb, config: Path) -> None:
    deployed.close()
    assert len(slots(source_db)) == 1
    refused = headwater_here("teardown", "please", "-c", config)
    assert (refused.code, "PSYNC_S0102" in refused.err) == (1, True)
    assert len(slots(source_db)) == 1
    done = headwater_here("teardown", "TEARDOWN", "-c", config)
    assert done.code == 0, done.err
    assert slots(source_db) == []
    assert not open_store(deployed.address).exists()
    again = headwater_here("teardown", "TEARDOWN", "-c", config)
    assert (again.code, "there is no store" in again.out) == (0, True)


def test_teardown_refused_while_running(deployed: Deployment, source_db: SourceDb, config: Path) -> None:
    with pytest.raises(LeaseHeldError):
        teardown(load_config(ConfigSource(path=config), {}, config.parent), "TEARDOWN", wait_seconds=0)
    assert len(slots(source_db)) == 1
    assert deployed.rows("u") != {}


def test_teardown_keeps_store_with_its_slot(
    deployed: Deployment, source_db: SourceDb, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.close()
    monkeypatch.setattr(commands, "drop_unread_slot", lambda *_: None)  # as if somebody read it
    with pytest.raises(HeadwaterError, match="HW_8106"):
        teardown(load_config(ConfigSource(path=config), {}, config.parent), "TEARDOWN", wait_seconds=0)
    assert open_store(deployed.address).exists()


def test_migrate_up_and_never_down(deployed: Deployment, config: Path) -> None:
    deployed.close()
    assert headwater_here("migrate", "up", "-c", config).code == 0
    down = headwater_here("migrate", "down", "-c", config)
    assert (down.code, "HW_8104" in down.err) == (1, True)


def test_connection(source_db: SourceDb, config: Path, deployed: Deployment) -> None:
    good = headwater_here("test-connection", "-c", config)
    assert (good.code, "ready to be replicated" in good.out) == (0, True), good
    deployed.close()
    source_db.execute("drop publication headwater")
    bad = headwater_here("test-connection", "-c", config)
    assert bad.code == 1
    assert "publication" in bad.out
