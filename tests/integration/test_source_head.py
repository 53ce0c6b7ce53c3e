"""Where a source's log ends, asked of a real Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.source.connect import SourceRefusedError, SourceSettings, SourceUnreachableError
from headwater.source.head import SourceHead
from tests.support.fix_postgres import SourceDb


def settings_of(db: SourceDb, **changes: object) -> SourceSettings:
    values = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "user": "postgres"}
    return SourceSettings(**{**values, "sslmode": "disable", **changes})  # type: ignore[arg-type]


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
    (answer,) = asyncio.run(heads(settings_of(source_db)))
    assert answer["default"] >= committed


def test_log_is_flushed_beyond_head(postgres_with: Callable[..., EmbeddedPostgres]) -> None:
    with psycopg.connect(postgres_with(synchronous_commit="on", wal_writer_delay="10s").dsn(), autocommit=True) as conn:
        info = conn.info
        settings = SourceSettings(info.host, info.dbname, info.user, port=info.port, sslmode="disable")
        answer = asyncio.run(heads(settings, times=3))[-1]
        row = conn.execute("select pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None
    assert parse_lsn(row[0]) > answer["default"]


def test_each_source_is_asked(source_db: SourceDb) -> None:
    one, two = settings_of(source_db, tag="one"), settings_of(source_db, tag="two")
    (answer,) = asyncio.run(heads(one, two))
    assert answer.keys() == {"one", "two"}


def test_lost_connection_is_made_again(source_db: SourceDb) -> None:
    async def story() -> None:
        head = SourceHead([settings_of(source_db)])
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
    settings = settings_of(source_db, **changes)
    with pytest.raises(kind) as failure:
        asyncio.run(heads(settings))
    assert failure.value.where == settings.address
