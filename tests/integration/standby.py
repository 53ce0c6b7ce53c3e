"""Copies of a server: a standby that can take its place, and a backup to go back to."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg

from headwater.embedded.postgres import EmbeddedPostgres
from tests.support.waiting import wait_until


def copy_of(server: EmbeddedPostgres, directory: Path) -> Path:
    """The server's files, taken while it is stopped."""
    server.stop()
    shutil.copytree(server.data_dir, directory)
    server.start()
    return directory


def standby_of(primary: EmbeddedPostgres, directory: Path, **settings: str) -> EmbeddedPostgres:
    """A running standby that follows the primary."""
    copy_of(primary, directory)
    (directory / "standby.signal").touch()
    conninfo = f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"
    standby = EmbeddedPostgres(
        directory, primary.binaries, {**primary.settings, "primary_conninfo": conninfo, **settings}
    )
    standby.start()
    return standby


def end_of(server: EmbeddedPostgres) -> str:
    """Where the primary's log ends."""
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        return str(conn.execute("select pg_current_wal_lsn()::text").fetchall()[0][0])


def wait_for(standby: EmbeddedPostgres, position: str) -> None:
    """Until the standby has replayed the log up to there."""
    with psycopg.connect(standby.dsn(), autocommit=True) as conn:

        def replayed() -> bool:
            return conn.execute("select pg_last_wal_replay_lsn() >= %s::pg_lsn", [position]).fetchall() == [(True,)]

        wait_until(replayed, "the standby to catch up")


def promote(standby: EmbeddedPostgres) -> None:
    """Make it the primary."""
    with psycopg.connect(standby.dsn(), autocommit=True) as conn:
        assert conn.execute("select pg_promote(true, 60)").fetchall() == [(True,)]
