"""An installation without the packages of Spark serves devices, and says of other commands what they lack."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import command
from tests.support.fix_headwater import Deploy
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, free_port
from tests.support.plain_http import plain_http

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

CONFIG = """
config: {edition: 3}
streams:
  notes: {auto_subscribe: true, query: "SELECT * FROM notes"}
"""
REFUSING = """
import sys

class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "pyarrow", "pandas", "numpy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing())
"""


@pytest.fixture
def no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that are started now find none of these packages."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(REFUSING)
    monkeypatch.setitem(command._CLEAN, "PYTHONPATH", str(folder))


@pytest.mark.usefixtures("no_spark")
def test_the_endpoint_serves_and_the_replicator_says_what_it_needs(
    deploy: Deploy, source_db: SourceDb, launch: Launch
) -> None:
    source_db.execute("create table notes (id text primary key)")
    deployment = deploy(CONFIG).start()
    deployment.stop()
    config = config_of(deployment, port := free_port())
    endpoint = launch("api", config)

    endpoint.wait_for("Application startup complete")
    with plain_http(port) as http:
        assert http.get("/probes/liveness").status_code == 200
    replicator = launch("replicate", config)
    assert replicator.wait() == 1
    assert "[HW_8003] this command needs Spark" in replicator.output
    assert ".whl[spark]'" in replicator.output
