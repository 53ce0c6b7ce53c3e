"""Where a source's log ends, asked of a real Postgres."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.source import head as heads_of_sources
from headwater.source.connect import SourceRefusedError, SourceSettings, SourceUnreachableError
from headwater.source.head import SourceHead, UnknownHeadError
from tests.support.fix_postgres import SourceDb


async def heads(*settings: SourceSettings, times: int = 1) -> list[dict[str, Lsn]]:
    head = SourceHead(settings)
    try:
        return [dict(await head.advance_past()) for _ in range(times)]
    finally:
        await head.close()


def position(db: SourceDb, function: str) -> Lsn:
    return parse_lsn(db.fetch(f"select {function}()::text")[0][0])


def test_commits_lie_before_head(source_db: SourceDb) -> None:
    source_db.execute("create table t (a int); insert into t values (1)")
    committed = position(source_db, "pg_current_wal_insert_lsn")
    (answer,) = asyncio.run(heads(source_db.settings()))
    assert answer["default"] >= committed


def test_log_is_flushed_beyond_head(source_with: Callable[..., SourceDb]) -> None:
    source = source_with(synchronous_commit="on", wal_writer_delay="10s")
    answer = asyncio.run(heads(source.settings(), times=3))[-1]
    assert position(source, "pg_current_wal_flush_lsn") > answer["default"]


def test_each_source_is_asked(source_db: SourceDb) -> None:
    one, two = source_db.settings(tag="one"), source_db.settings(tag="two")
    (answer,) = asyncio.run(heads(one, two))
    assert answer.keys() == {"one", "two"}


def test_lost_connection_is_made_again(source_db: SourceDb) -> None:
    async def story() -> None:
        head = SourceHead([source_db.settings()])
        await head.advance_past()
        source_db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headwater api'"
        )
        await head.advance_past()
        await head.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("changes", "kind"), [({"port": 1}, SourceUnreachableError), ({"database": "no_such_database"}, SourceRefusedError)]
)
def test_unreachable_source_is_named(
    source_db: SourceDb, changes: dict[str, object], kind: type[HeadwaterError]
) -> None:
    settings = source_db.settings(**changes)
    with pytest.raises(kind) as failure:
        asyncio.run(heads(settings))
    assert failure.value.where == settings.address


def connections(db: SourceDb) -> int:
    count: int = db.fetch("select count(*) from pg_stat_activity where application_name = 'headwater api'")[0][0]
    return count


def test_one_that_hangs_delays_none_that_is_asked_beside_it(
    source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads_of_sources, "ANSWER_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        up = source_db.settings(tag="up")
        hangs = source_db.settings(tag="hangs", port=silent.getsockname()[1])

        async def story() -> tuple[float, float]:
            head, began = SourceHead([up, hangs]), time.monotonic()
            all_heads = asyncio.create_task(head.advance_past())
            await asyncio.sleep(0)
            for _ in range(20):
                assert (await head.advance_past(["up"])).keys() == {"up"}
            others = time.monotonic() - began
            with pytest.raises(UnknownHeadError, match="source hangs") as failure:
                await all_heads
            assert failure.value.source == "hangs"
            await head.close()
            return others, time.monotonic() - began

        others, bounded = asyncio.run(story())
    assert others < 1.0
    assert bounded < 4.0


def test_source_that_is_not_asked_gets_no_connection(source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_of_sources, "IDLE_SECONDS", 0.2)

    async def story() -> None:
        head = SourceHead([source_db.settings(tag=f"s{n}") for n in range(10)])
        await head.advance_past(["s3"])
        assert await asyncio.to_thread(connections, source_db) == 1
        await head.advance_past()
        assert await asyncio.to_thread(connections, source_db) == 10
        deadline = time.monotonic() + 20
        while await asyncio.to_thread(connections, source_db):
            assert time.monotonic() < deadline, "unused connections are closed"
            await asyncio.sleep(0.05)
        assert len(await head.advance_past()) == 10, "and opened again"
        await head.close()

    asyncio.run(story())
