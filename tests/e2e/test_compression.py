"""Compressed streams in the stock fetch of Node and of Chromium."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chromium import find_chromium
from tests.support.fix_api import Endpoint, make_token
from tests.support.memory_store import MemoryStore
from tests.support.model_client import ModelClient
from tests.support.node_process import NodeProcess

pytestmark = pytest.mark.e2e

DEADLINE = 60.0


@pytest.fixture
def script(endpoint: Endpoint, tmp_path: Path) -> Iterator[NodeProcess]:
    """Node, and a Chromium with a page of the endpoint's origin."""
    with NodeProcess("download.mjs", tmp_path / "download.log") as process:
        process.call(
            "launch",
            deadline=DEADLINE,
            executable=find_chromium(),
            sandbox=os.geteuid() != 0,
            profile=str(tmp_path / "profile"),
            url=f"{endpoint.http.base_url}/probes/liveness",
        )
        yield process


@pytest.mark.parametrize(
    ("platform", "accepted", "used"),
    [("node", None, "gzip"), ("node", "zstd", "zstd"), ("chromium", None, "zstd"), ("chromium", "gzip", "gzip")],
)
def test_bucket_of_several_chunks(
    platform: str, accepted: str | None, used: str, endpoint: Endpoint, memory_store: MemoryStore, script: NodeProcess
) -> None:
    mine = endpoint.bucket("mine", "u1")
    source = random.Random(1)
    for row in range(4500):
        memory_store.put(mine, str(row), json.dumps({"text": f"{source.randbytes(30).hex()} ü😀"}))
    memory_store.commit()

    url = f"{endpoint.http.base_url}/sync/stream"
    answer = script.call(platform, deadline=DEADLINE, url=url, token=make_token(), encoding=accepted)

    assert isinstance(answer, dict)
    assert answer["encoding"] == used
    client = ModelClient()
    client.connect()
    client.receive(str(answer["text"]).encode())
    assert client.kinds() == ["checkpoint", *["data"] * 5, "checkpoint_complete"]
    assert client.rows == memory_store.rows([mine])
