"""Two hundred thousand clients that mean no good, over sockets, and the whole service: its process stays as it was."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import Callable
from itertools import islice
from typing import Any

import psutil
import pytest
import uvloop

from headwater.source.upload.prepare import prepare_uploads
from headwater.source.upload.settings import TableRule, UploadSettings
from tests.support import fix_service
from tests.support.fix_api import Endpoint, make_token
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.fix_upload import NOTES
from tests.support.ruled_configs import STREAM_ADDED
from tests.support.waiting import wait_until
from tests.unit.api.hostile.conversation import Credentials, credentials
from tests.unit.api.hostile.requests import CHANGING
from tests.unit.api.hostile.siege import Neighbour, Tally, besiege, conversations, no_failure_in_the_log
from tests.unit.api.hostile.wire import Wire

PARTS, CONVERSATIONS = 2, 100_000
ADMIN = "an admin token of the tests"
MEBIBYTE = 1024 * 1024

TABLES = """
create table lists (id text primary key, owner text, name text);
create table members (id text primary key, list_id text, user_id text, active int);
create table todos (id text primary key, list_id text, title text, done int);
insert into lists select 'l' || i, 'u' || i % 4, 'name' from generate_series(0, 19) i;
insert into members select 'm' || i, 'l' || i, 'u' || i % 4, 1 from generate_series(0, 19) i;
insert into todos select 't' || i, 'l' || i % 20, 'title', 0 from generate_series(0, 399) i;
"""


@pytest.fixture
def service(source_db: SourceDb, upload_role: str, deploy: Deploy, serve: Callable[..., Service]) -> Service:
    """A service with all that it can offer, over a replicated database."""
    source_db.execute(TABLES + NOTES)
    deployment = deploy(STREAM_ADDED).start()
    prepare_uploads(UploadSettings(deployment.settings, upload_role, {"notes": TableRule("public", "notes")}))
    return serve(
        deployment, upload={"role": upload_role, "tables": {"notes": {}}}, api={"workers": 1, "tokens": [ADMIN]}
    )


async def siege(wire: Wire, token: str, tokens: Credentials, seed: int, number: int, pid: int) -> int:
    """How many more bytes the endpoint's process has at the end than after a half."""
    tally, began, process = Tally(), time.monotonic(), psutil.Process(pid)
    neighbour = Neighbour(wire, token)
    waiting = conversations(seed, number, tokens, CHANGING)
    await besiege(wire, islice(waiting, number // 2), neighbour, tally)
    held = process.memory_info().rss
    await besiege(wire, waiting, neighbour, tally)
    grown = process.memory_info().rss - held
    neighbour.leave()
    print(f"{tally} in {time.monotonic() - began:.0f} s; {held >> 20} MiB, and {grown / MEBIBYTE:.1f} more")
    return grown


def run(*what: Any) -> int:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(siege(*what))


def test_hostile_clients_over_sockets(endpoint: Endpoint) -> None:
    with no_failure_in_the_log():
        run(Wire(*endpoint.address), make_token("u0"), credentials(ADMIN, 0), 100, 500, os.getpid())
    wait_until(lambda: endpoint.open_streams() == 0, "the end of every stream")


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_very_many_hostile_clients(service: Service, part: int) -> None:
    tokens = credentials(ADMIN, part, fix_service.KEY, fix_service.AUDIENCE)
    wire, token = Wire("127.0.0.1", service.port), service.token("u0", seconds=80_000)
    assert run(wire, token, tokens, 101 + part, CONVERSATIONS, service.pid) < 16 * MEBIBYTE
    wait_until(lambda: clients(service) == [], "the end of every stream")
    wait_until(lambda: connections(service) == [], "the end of every connection")
    log = service.log.read_text(encoding="utf-8")
    assert "Traceback" not in log
    assert not [line for line in log.splitlines() if " ERROR " in line and "HW_6118" not in line]


def clients(service: Service) -> list[object]:
    """Those that have an open stream."""
    asked = urllib.request.Request(
        f"{service.endpoint}/api/headwater/v1/clients", headers={"authorization": f"Token {ADMIN}"}
    )
    with urllib.request.urlopen(asked, timeout=60) as answer:
        found: list[object] = json.load(answer)["data"]["clients"]
    return found


def connections(service: Service) -> list[object]:
    """Those of clients, in whatever state."""
    return [each for each in psutil.Process(service.pid).net_connections("tcp") if each.laddr.port == service.port
            and each.status != psutil.CONN_LISTEN]  # fmt: skip
