"""A million clients that mean no good, in process: they are refused, cost nothing for good and harm nobody."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

import psutil
import pytest
import uvloop

from headwater.api.admin.route import AdminSettings
from headwater.api.app import ApiApp, ApiSettings, create_app
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.keys import parse_key
from headwater.api.limits import HttpLimits, StreamLimits
from headwater.source.connect import SourceSettings
from headwater.source.upload.prepare import prepare_uploads
from headwater.source.upload.settings import TableRule, UploadSettings
from headwater.storage.open import open_store
from tests.support.fix_admin import OPERATOR, TOKEN
from tests.support.fix_api import AUDIENCE, PlayedHead, jwk, make_token
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import NOTES
from tests.support.ruled_configs import STREAM_ADDED
from tests.support.ruled_store import RuledStore
from tests.support.signers import signer
from tests.unit.api.hostile.conversation import credentials
from tests.unit.api.hostile.in_process import listening
from tests.unit.api.hostile.siege import AT_ONCE, Neighbour, Tally, besiege, conversations, no_failure_in_the_log

PARTS, CONVERSATIONS = 10, 100_000
MEBIBYTE = 1024 * 1024


@pytest.fixture
def app(ruled: RuledStore, source_db: SourceDb, upload_role: str) -> Iterator[ApiApp]:
    """All that an endpoint can offer: streams, uploads to a real Postgres, and the admin routes."""
    ruled.serve(STREAM_ADDED)
    source_db.execute(NOTES)
    info = source_db.connection.info
    login = SourceSettings(host=info.host, port=info.port, database=source_db.name, user=info.user, sslmode="disable")
    uploads = UploadSettings(login, upload_role, {"notes": TableRule("public", "notes")})
    prepare_uploads(uploads)
    with closing(open_store(ruled.store.address).open_reader()) as reader:
        keys = KeyRing((parse_key(jwk()), parse_key(signer().jwk()), parse_key(signer("Ed25519", None).jwk())))
        settings = ApiSettings(
            keys,
            frozenset({AUDIENCE}),
            streams=StreamLimits(per_user=AT_ONCE),
            upload=uploads,
            admin=AdminSettings((OPERATOR,), ruled.store.address, (login,)),
            http=HttpLimits(max_connections=AT_ONCE * 3, drain_seconds=0),
        )
        yield create_app(settings, reader, PlayedHead())


async def siege(app: ApiApp, seed: int, number: int) -> tuple[int, int]:
    """How much more is allocated at the end than after a half: blocks of Python's, and bytes of the process."""
    before = len(asyncio.all_tasks())
    tokens, tally, began = credentials(TOKEN, seed), Tally(), time.monotonic()
    async with listening(app) as connect:
        neighbour = Neighbour(connect, make_token("u0", exp=int(time.time()) + 80_000))
        running = len(asyncio.all_tasks())
        waiting = conversations(seed, number, tokens)
        await besiege(connect, islice(waiting, number // 2), neighbour, tally)
        await all_ended(app, neighbour, running)
        held = memory()
        await besiege(connect, waiting, neighbour, tally)
        await all_ended(app, neighbour, running)
        blocks, size = (now - then for now, then in zip(memory(), held, strict=True))
    assert len(asyncio.all_tasks()) == before
    print(
        f"{tally} in {time.monotonic() - began:.0f} s; {held[1] >> 20} MiB, and {size / MEBIBYTE:.1f} more, {blocks=}"
    )
    return blocks, size


async def all_ended(app: ApiApp, neighbour: Neighbour, running: int) -> None:
    """Wait until nothing is left of any connection."""
    neighbour.leave()
    deadline = time.monotonic() + 60
    while len(asyncio.all_tasks()) > running or app.endpoint.streams.count:
        assert time.monotonic() < deadline, f"still running: {asyncio.all_tasks()}"
        await asyncio.sleep(0.01)


def memory() -> tuple[int, int]:
    """What is allocated by Python in blocks, and by the process in bytes, without what its allocator has free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return sys.getallocatedblocks(), psutil.Process().memory_info().rss


def run(app: ApiApp, seed: int, number: int) -> tuple[int, int]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, no_failure_in_the_log():
        return runner.run(siege(app, seed, number))


def test_hostile_clients(app: ApiApp) -> None:
    run(app, 0, 2000)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_many_hostile_clients(app: ApiApp, part: int) -> None:
    blocks, size = run(app, 1 + part, CONVERSATIONS)
    assert blocks < CONVERSATIONS
    assert size < 24 * MEBIBYTE  # allocators keep what they were given: it swings by some MiB
