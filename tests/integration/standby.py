"""Copies of a server: a standby that can take its place, a backup to go back to, and what an upgrade makes of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg

from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries, account_to_run_as
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


def upgraded(old: EmbeddedPostgres, programs: Path, directory: Path, binaries: PostgresBinaries) -> EmbeddedPostgres:
    """What `pg_upgrade` makes of a server, which it stops: another cluster with the same oids. Not started yet.
    `programs` has those of the old version."""
    new = EmbeddedPostgres(directory, binaries, old.settings)
    for server in (new, old):
        server.start()
        server.stop()
    account = account_to_run_as()
    user = None if account is None else account.uid
    with TemporaryDirectory(prefix="upgrade") as work:  # a short path, for the servers' sockets
        if account is not None:
            account.own(Path(work))
            for parent in directory.parents[:4]:
                parent.chmod(parent.stat().st_mode | 0o055)
        if binaries.major >= 18 > old.binaries.major:  # new clusters have checksums from there on
            checksums: list[str | Path] = [binaries.bin_dir / "pg_checksums", "--disable", "-D", new.data_dir]
            subprocess.run(checksums, cwd=work, check=True, user=user)
        settings = " ".join(f"-c {name}={value}" for name, value in old.settings.items())
        command: list[str | Path] = [binaries.bin_dir / "pg_upgrade", "-b", programs, "-B", binaries.bin_dir]
        command += [
            "-d",
            old.data_dir,
            "-D",
            new.data_dir,
            "-U",
            "postgres",
            "-o",
            settings,
            "-O",
            settings,
            "-s",
            work,
        ]
        subprocess.run(command, cwd=work, check=True, user=user, timeout=120)
    return new
