"""Processes of the embedded servers: the user that they run as, the files that user can reach, and their end with
us."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headwater.errors import HeadwaterError


class NoUnprivilegedUser(HeadwaterError):
    """We are root, Postgres refuses to run as root, and the machine has no user to run it as."""

    code = "HW_4505"


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

    Raises `NoUnprivilegedUser` when we are root and there is no other user.
    """
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "postgres", "daemon"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise NoUnprivilegedUser(
        "Postgres does not run as root, and this machine has none of the users nobody, postgres and daemon",
        fix="run as an ordinary user, or add the user nobody",
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
