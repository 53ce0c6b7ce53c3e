"""What commands and metrics say where each source may have a process of its own, and only some run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from headwater.cli.config import ServiceConfig, load_config
from headwater.cli.metrics import replicator_page
from headwater.config import ConfigSource
from headwater.replication.meters import Figures
from headwater.storage.address import SqliteAddress
from headwater.storage.open import open_store
from headwater.storage.sql.leases import process_owner
from tests.support.command import headwater
from tests.support.fix_service import free_port

CONFIG = """
replication:
  connections:
    - {{uri: 'postgresql://u:p@one.example/d', tag: one}}
    - {{uri: 'postgresql://u:p@two.example/d', tag: two}}
storage: {{type: sqlite, path: {path}}}
client_auth: {{audience: [app], jwks_uri: 'https://a.example/jwks'}}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Iterator[Path]:
    """The config of two sources. Only the first one is followed."""
    place = tmp_path / "store"
    with closing(open_store(SqliteAddress(str(place))).open_writer()) as store:
        store.acquire("one", process_owner(), 600.0)
        path = tmp_path / "headwater.yaml"
        path.write_text(CONFIG.format(path=place), encoding="utf-8")
        yield path


def test_request_to_a_source_that_nobody_follows(config_file: Path) -> None:
    def submitted(source: str) -> str:
        done = headwater("source", "resync", "notes", "--no-wait", "--source", source, "--config", config_file)
        assert done.code == 0, done.err
        return done.out

    assert submitted("one") == "request 1 is submitted\n"
    assert "request 2 is submitted; no replicator of the source is running" in submitted("two")


def test_one_process_has_the_sizes_of_the_store(config_file: Path) -> None:
    config = load_config(ConfigSource(path=config_file), {}, config_file.parent)
    assert "storage_size_bytes" in page_of(config, "one")
    assert "storage_size_bytes" not in page_of(config, "two"), "a sum over processes would have them twice"


def page_of(config: ServiceConfig, source: str) -> str:
    """The metrics of a process that follows this source, once sizes were measured if they are."""
    port = free_port()
    with replicator_page(config, port, {source: Figures()}):
        url = f"http://127.0.0.1:{port}/metrics"
        httpx.get(url).raise_for_status()
        for each in threading.enumerate():
            if each.name == "headwater-sizes":
                each.join()
        return httpx.get(url).raise_for_status().text
