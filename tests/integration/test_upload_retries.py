"""What makes a device come again: locks, deadlocks, a source that is away, lost connections, limits."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from headwater.source.upload.apply import Uploads as Uploaded
from headwater.source.upload.entries import Device as Sender
from headwater.source.upload.entries import Json, entry_of, transaction_of
from headwater.source.upload.errors import UploadRetryError
from tests.support.fix_api import Endpoint
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import Uploads, delete, patch, put
from tests.support.memory_store import MemoryStore
from tests.support.network import Network
from tests.support.waiting import wait_until


def test_locked_table_does_not_hold_connections(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
    settings = notes_of(statement_timeout=1, max_connections=10).settings

    async def told(taking: Uploaded, users: str) -> list[str]:
        takes = []
        for user in users:
            row: dict[str, Json] = {"op": "PUT", "type": "notes", "id": user, "data": {"owner": user, "title": "x"}}
            sender = Sender(user, "c", json.dumps({"sub": user}))
            takes.append(taking.take(sender, transaction_of([entry_of(1, row)])))
        answers = await asyncio.gather(*takes, return_exceptions=True)
        return [each.what if isinstance(each, UploadRetryError) else str(each) for each in answers]

    async def run() -> None:
        taking = Uploaded(settings)
        with psycopg.connect(source_db.dsn) as other:
            other.execute("lock table notes")
            assert ["55P03" in each for each in await told(taking, "a")] == [True]
            assert ["55P03" in each for each in await told(taking, "ab")] == [True, True]
            assert ["55P03" in each for each in await told(taking, "abcdef")] == [True] + [False] * 5
            other.rollback()
        assert "APPLIED" in (await told(taking, "a"))[0]
        assert ["APPLIED" in each for each in await told(taking, "bcdef")] == [True] * 5
        await taking.close()

    asyncio.run(run())


def test_deadlock_is_retried(uploads: Uploads) -> None:
    uploads.db.execute("insert into notes values ('1', 'ann', 'a'), ('2', 'ann', 'a')")
    uploads.db.execute(
        f"alter database {uploads.db.name} set deadlock_timeout = '50ms';"
        "create function wait_for_other() returns trigger language plpgsql as $$"
        "begin perform pg_sleep(0.1); return new; end$$;"
        "create trigger t after update on notes for each row execute function wait_for_other()"
    )
    phone, tablet = uploads.device(), uploads.device()
    there = phone.transaction(patch("notes", "1", title="phone"), patch("notes", "2", title="phone"))
    back = tablet.transaction(patch("notes", "2", title="tablet"), patch("notes", "1", title="tablet"))
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda pair: pair[0].answers(pair[1]), ((phone, there), (tablet, back))))
    assert [each[0]["outcome"] for each in answers] == ["applied", "applied"]
    assert len(set(uploads.rows("select title from notes"))) == 1


def test_source_unreachable_is_retried(
    uploads: Uploads,
    start_endpoint: Callable[..., Endpoint],
    memory_store: MemoryStore,
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = replace(uploads.settings, login=replace(uploads.settings.login, port=1))
    device = replace(uploads, endpoint=start_endpoint(memory_store, upload=away)).device()
    response = device.post(device.transaction(put("notes", "1", owner="ann", title="x")))
    assert (response.status_code, "retry-after" in response.headers) == (503, True)
    assert "127.0.0.1" not in response.text
    assert "HW_2001" in caplog.text


def test_all_ended_connections_are_dropped_at_once(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
    uploads = notes_of(max_connections=6, max_per_user=6)
    devices = [uploads.device() for _ in range(6)]
    with psycopg.connect(source_db.dsn) as other, ThreadPoolExecutor(6) as pool:
        other.execute("lock table notes")
        sent = [pool.submit(each.applied, put("notes", each.client_id, owner="ann", title="x")) for each in devices]
        waits_for_a_lock(source_db, 6)
        other.rollback()
        for each in sent:
            each.result()
    query = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headwater upload'"
    assert len(source_db.fetch(query)) == 6
    devices[0].applied(put("notes", "again", owner="ann", title="x"))


@pytest.mark.parametrize(
    ("limits", "turned_away"),
    [
        ({"max_per_user": 1, "max_connections": 2, "max_waiting": 0}, "ann"),
        ({"max_per_user": 2, "max_connections": 1, "max_waiting": 0}, "ben"),
    ],
)
def test_concurrency_limits(
    source_db: SourceDb, notes_of: Callable[..., Uploads], limits: dict[str, int], turned_away: str
) -> None:
    uploads = notes_of(**limits)
    phone, tablet, ben = uploads.device("ann"), uploads.device("ann"), uploads.device("ben")
    with psycopg.connect(source_db.dsn) as other, ThreadPoolExecutor(1) as pool:
        other.execute("lock table notes")
        held = pool.submit(phone.applied, put("notes", "1", owner="ann", title="x"))
        waits_for_a_lock(source_db)
        refused = tablet.post()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert ben.post().status_code == (429 if turned_away == "ben" else 200)
        other.rollback()
        held.result()
    tablet.applied(put("notes", "2", owner="ann", title="y"))


def waits_for_a_lock(db: SourceDb, uploads: int = 1) -> None:
    query = "select from pg_stat_activity where application_name = 'headwater upload' and wait_event_type = 'Lock'"
    wait_until(lambda: len(db.fetch(query)) >= uploads, f"{uploads} uploads to wait for a lock")


@pytest.mark.parametrize(
    ("limit", "size"), [({"max_parked_per_user": 2}, 1), ({"max_parked_bytes_per_user": 300_000}, 100_000)]
)
def test_letters_per_user_are_limited(notes_of: Callable[..., Uploads], limit: dict[str, int], size: int) -> None:
    uploads = notes_of(**limit)
    phone, tablet, ben = uploads.device("ann"), uploads.device("ann"), uploads.device("ben")
    bad = put("notes", "1", owner="ann", title="", body=secrets.token_hex(size))
    phone.parked(bad)
    tablet.parked(bad)
    held = phone.transaction(bad)
    assert phone.post(held).status_code == 503
    ben.parked(bad)
    uploads.db.execute("update headwater_upload.dead_letters set state = 'discarded', payload = null where id = 1")
    assert phone.answers(held)[0]["outcome"] == "parked"


def test_devices_per_user_are_limited(notes_of: Callable[..., Uploads]) -> None:
    uploads = notes_of(max_devices_per_user=2)
    first, second, third, ben = (uploads.device(user) for user in ("ann", "ann", "ann", "ben"))
    first.parked(put("notes", "1", owner="ann", title=""))
    second.applied(put("notes", "2", owner="ann", title="x"))
    held = third.transaction(put("notes", "3", owner="ann", title="x"))
    assert third.post(held).status_code == 503
    ben.applied(put("notes", "4", owner="ben", title="x"))
    uploads.db.execute("update headwater_upload.clients set seen_at = now() - interval '8 days' where sub = 'ann'")
    assert third.answers(held)[0]["outcome"] == "applied"
    left = uploads.rows("select client_id from headwater_upload.clients where sub = 'ann' order by client")
    assert left == [(first.client_id,), (third.client_id,)]  # the first has a letter that waits


def test_large_waiting_body_blocks_no_other(source_db: SourceDb, notes_of: Callable[..., Uploads]) -> None:
    uploads = notes_of(lock_timeout=60, statement_timeout=60)
    phone, tablet, other = uploads.device("ann"), uploads.device("ann"), uploads.device("ben")
    phone.applied(put("notes", "1", owner="ann", title="a"))
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(source_db.dsn) as holder:
            holder.execute("update notes set title = 'held'")
            held = pool.submit(phone.applied, patch("notes", "1", body="x" * (8 * 1024 * 1024 - 4096)))
            waits_for_a_lock(source_db)
            for device, row in ((tablet, "2"), (other, "3")):
                device.applied(put("notes", row, owner=device.user, title="b", body="y" * 300 * 1024))
            other.applied(put("notes", "4", owner="ben", title="c", body="z" * 4 * 1024 * 1024))
            assert not held.done()
            holder.rollback()
        held.result(60)
    assert source_db.fetch("select id, length(body) > 300000 from notes order by id") == [
        (number, True) for number in "1234"
    ]


def test_entries_share_round_trips(
    source_db: SourceDb, notes_of: Callable[..., Uploads], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Uploaded, "_forget_now_and_then", lambda _: None)  # it asks beside the first uploads
    assert source_db.server is not None
    login = notes_of().settings.login
    with Network(source_db.server.port) as network:
        device = notes_of(login=replace(login, host="127.0.0.1", port=network.port)).device()

        def round_trips(*entries: dict[str, object]) -> int:
            before = network.round_trips
            device.applied(*entries)
            return network.round_trips - before

        round_trips(put("notes", "0", owner="ann", title="it connects"))
        one = round_trips(put("notes", "0", owner="ann", title="x"))
        assert one <= 10
        many = [put("notes", str(number), owner="ann", title="x") for number in range(800)]
        assert round_trips(*many) < one + 10
        assert round_trips(*(patch("notes", str(number), title="y") for number in range(800))) < one + 10
        assert round_trips(*(delete("notes", str(number)) for number in range(400, 1200))) < one + 20
    assert source_db.fetch("select count(*), min(title) from notes") == [(400, "y")]


def test_error_names_its_entry(uploads: Uploads) -> None:
    device = uploads.device()
    many = [put("notes", str(number), owner="ann", title="x") for number in range(700)]
    many[600]["data"] = {"owner": "ann", "title": ""}
    many[650]["id"] = 5  # is found before anything is sent
    assert device.parked(*many)["op_id"] in (601, 651)
    many[650]["id"] = "650"
    error = device.parked(*many, patch("notes", "nobody", title="x"))
    assert (error["sqlstate"], error["op_id"]) == ("23514", 700 + 601)
    many[600]["data"] = {"owner": "ann", "title": "x"}
    error = device.parked(*many, patch("notes", "nobody", title="x"), delete("notes", "1"))
    assert (error["code"], error["op_id"]) == ("HW_6113", 1401 + 701)
    assert uploads.rows("select count(*) from notes") == [(0,)]
