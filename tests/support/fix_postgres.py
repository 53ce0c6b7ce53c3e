"""A real Postgres for the tests: one server for the session, a database of its own for each test.

A data directory is laid out once for all workers; each server begins with a copy of it. HEADWATER_TEST_POSTGRES names
the major version to test against, which is fetched where it is missing; without it that of the machine's own is taken.
What not every Postgres can is asked of it: of one version, the first that can what tests want of it is taken.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, LiteralString

import psycopg
import pytest
from psycopg import sql

from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries, find_binaries
from headwater.source.connect import SourceSettings
from tests.support.one_at_a_time import alone
from tests.support.postgres_versions import every_postgres_of, postgres_of

# Tests ask whether data survives a process, not whether it survives the machine; and what a commit does not flush they
# want to see in the stream soon.
FAST: Final[Mapping[str, str]] = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "jit": "off",
    "shared_buffers": "16MB",  # all of them are looked through for each database that is dropped
    "wal_writer_delay": "10ms",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
}

# What a Postgres is built with or without, and how to ask. The other abilities are the names of extensions
_BUILT_WITH: Final[Mapping[str, LiteralString]] = {
    "ssl": "select current_setting('ssl_library') <> ''",
    "xml": "select '<a/>'::xml is document",
}
_EXTENSIONS: Final = "select name from pg_available_extensions"
_WANTED: Final = frozenset({*_BUILT_WITH, "hstore"})

_numbers = itertools.count(1)
Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(slots=True)
class SourceDb:
    """A database for one test. Every statement commits by itself."""

    server: EmbeddedPostgres
    name: str
    connection: Connection = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.connection = psycopg.connect(self.dsn, autocommit=True)

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    @property
    def uri(self) -> str:
        """Its address as commands and the service config take it."""
        return f"postgresql://postgres@127.0.0.1:{self.server.port}/{self.name}"

    def execute(self, statement: str, *parameters: object) -> None:
        """Run one statement, or without parameters several."""
        self.connection.execute(statement, parameters or None)

    def fetch(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self.connection.execute(statement, parameters or None).fetchall()

    def settings(self, **changes: Any) -> SourceSettings:
        """How the service reaches it."""
        base = SourceSettings("127.0.0.1", self.name, "postgres", port=self.server.port, sslmode="disable")
        return replace(base, **changes)

    def needs(self, major: int, feature: str) -> None:
        """Skip the test on a server older than `major`, which lacks `feature`."""
        if self.connection.info.server_version < major * 10_000:
            pytest.skip(f"needs {feature}, which Postgres has from {major} on")

    def lose_slots(self) -> None:
        """Drop its slots, ending whoever still uses them."""
        _drop_slots(self.connection, self.name)

    def drop(self, admin: Connection | None = None) -> None:
        """Drop the database with its slots, ending whoever still uses them."""
        self.connection.close()
        with nullcontext(admin) if admin else psycopg.connect(self.server.dsn(), autocommit=True) as conn:
            _drop_slots(conn, self.name)
            conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(self.name)))


def _drop_slots(admin: Connection, database: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        slots = admin.execute(
            "select slot_name, active_pid from pg_replication_slots where database = %s", [database]
        ).fetchall()
        if not slots:
            return
        for name, walsender in slots:
            if walsender is not None:
                admin.execute("select pg_terminate_backend(%s)", [walsender])
                continue
            try:
                admin.execute("select pg_drop_replication_slot(%s)", [name])
            except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                pass  # taken again, or gone with its session: look again
        assert time.monotonic() < deadline, f"slots of {database} stay in use: {slots}"
        time.sleep(0.02)


def _asked(connection: Connection) -> set[str]:
    """The abilities of a server."""
    found = {name for (name,) in connection.execute(_EXTENSIONS)}
    for ability, question in _BUILT_WITH.items():
        with suppress(psycopg.errors.FeatureNotSupported), connection.transaction():
            if connection.execute(question).fetchall() == [(True,)]:
                found.add(ability)
    return found


def skip_without(ability: str, connection: Connection) -> None:
    """Skip the test on a server that lacks an ability: `ssl`, `xml`, or an extension by its name."""
    if ability not in _asked(connection):
        pytest.skip(f"needs {ability}, which this Postgres {connection.info.server_version // 10_000} lacks")


def able_postgres(laid_out: Path, major: int, abilities: Set[str]) -> PostgresBinaries | None:
    """The first programs of that version whose server has all of these abilities."""
    for binaries in every_postgres_of(major):
        if set(abilities) <= set(_template(binaries, laid_out).with_suffix(".can").read_text().split()):
            return binaries
    return None


def program_of(server: EmbeddedPostgres, name: str) -> Path:
    """A program of that server's version; skips the test where none has it."""
    for binaries in (server.binaries, *every_postgres_of(server.binaries.major)):
        if (program := binaries.bin_dir / name).exists():
            return program
    pytest.skip(f"needs {name}, which no Postgres {server.binaries.major} here has")


@pytest.fixture(scope="session")
def postgres_binaries(laid_out: Path) -> PostgresBinaries:
    asked = os.environ.get("HEADWATER_TEST_POSTGRES")
    first = postgres_of(int(asked)) if asked else find_binaries()
    return able_postgres(laid_out, first.major, _WANTED) or first


def new_server(
    data_dir: Path, binaries: PostgresBinaries, laid_out: Path, settings: Mapping[str, str] | None = None
) -> EmbeddedPostgres:
    """A server that is not started yet, in a copy of the one data directory that all begin with. All these are the
    same cluster to Postgres: where a test tells clusters apart, `initdb` has to run."""
    subprocess.run(["cp", "-a", _template(binaries, laid_out), data_dir], check=True)
    return EmbeddedPostgres(data_dir, binaries, {**FAST, **(settings or {})})


def _template(binaries: PostgresBinaries, laid_out: Path) -> Path:
    """The data directory that servers of these programs begin with. A file beside it names their abilities."""
    template = laid_out / f"data-{binaries.major}-{hashlib.sha256(bytes(binaries.bin_dir)).hexdigest()[:8]}"
    can = template.with_suffix(".can")
    with alone(laid_out / "lock"):
        if not can.exists():
            with (
                EmbeddedPostgres(template, binaries, FAST) as server,
                psycopg.connect(server.dsn(), autocommit=True) as connection,
            ):
                abilities = _asked(connection)
            can.write_text("\n".join(abilities))
    return template


@pytest.fixture(scope="session")
def laid_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where data directories are laid out for all workers of a run."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "laid-out"
    folder.mkdir(exist_ok=True)
    (folder / "lock").touch()
    return folder


@pytest.fixture(scope="session")
def postgres(
    postgres_binaries: PostgresBinaries, laid_out: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedPostgres]:
    """The session's server: logical decoding on, durability off."""
    with new_server(tmp_path_factory.mktemp("postgres") / "data", postgres_binaries, laid_out) as server:
        yield server


@pytest.fixture(scope="session")
def maintenance(postgres: EmbeddedPostgres) -> Iterator[Connection]:
    """For all databases of the session: a connection costs a third of what a database does."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as conn:
        yield conn


@contextmanager
def databases(postgres: EmbeddedPostgres, maintenance: Connection) -> Iterator[Callable[[], SourceDb]]:
    """Makes fresh databases on a server; gone afterwards, with their slots and publications."""
    with ExitStack() as stack:

        def make() -> SourceDb:
            name = f"source_{next(_numbers)}"
            # Half the work of writing it to the log, which all walsenders of the server would read
            strategy = sql.SQL("strategy file_copy" if postgres.binaries.major >= 15 else "")
            maintenance.execute(sql.SQL("create database {} {}").format(sql.Identifier(name), strategy))
            database = SourceDb(postgres, name)
            stack.callback(database.drop, maintenance)
            return database

        yield make


@pytest.fixture
def new_source_db(postgres: EmbeddedPostgres, maintenance: Connection) -> Iterator[Callable[[], SourceDb]]:
    """Makes fresh databases on the session's server."""
    with databases(postgres, maintenance) as make:
        yield make


@pytest.fixture
def source_db(new_source_db: Callable[[], SourceDb]) -> SourceDb:
    """A fresh database on the session's server."""
    return new_source_db()


@pytest.fixture
def postgres_with(
    postgres_binaries: PostgresBinaries, laid_out: Path, tmp_path: Path
) -> Iterator[Callable[..., EmbeddedPostgres]]:
    """Starts a server of the test's own: `postgres_with(wal_level="replica")`. It stops with the test."""
    with ExitStack() as servers:

        def start(**settings: str) -> EmbeddedPostgres:
            data_dir = tmp_path / f"postgres-{next(_numbers)}"
            return servers.enter_context(new_server(data_dir, postgres_binaries, laid_out, settings))

        yield start


@pytest.fixture
def source_with(postgres_with: Callable[..., EmbeddedPostgres]) -> Iterator[Callable[..., SourceDb]]:
    """`source_with(wal_level="replica")`: a database on a server of the test's own."""
    with ExitStack() as stack:

        def start(**settings: str) -> SourceDb:
            source = SourceDb(postgres_with(**settings), "postgres")
            stack.callback(lambda: source.connection.close())  # noqa: PLW0108 - the last one of several
            return source

        yield start


@pytest.fixture
def german_postgres(
    postgres_with: Callable[..., EmbeddedPostgres],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> EmbeddedPostgres:
    """A server that speaks German and prints money as Germans do. Skips the test where there is none."""
    folder = tmp_path_factory.mktemp("locales")
    try:
        command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs localedef, to make the German locale")
    for parent in (folder, *folder.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o055)  # the server runs as another user
    monkeypatch.setenv("LOCPATH", str(folder))
    server = postgres_with(lc_messages="de_DE.UTF-8", lc_monetary="de_DE.UTF-8")
    with psycopg.connect(server.dsn()) as conn, pytest.raises(psycopg.errors.UndefinedTable) as told:
        conn.execute("select from nowhere")
    if "existiert nicht" not in str(told.value):
        pytest.skip("needs a Postgres with translations")
    return server
