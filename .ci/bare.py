#!/usr/bin/env python3
"""`make demo` and `make test` on a machine that has nothing: a root of a system with what README.md asks for, no more,
and the last commit in it. Needs root, debootstrap and the port 8080.

Usage: .ci/bare.py SYSTEM USER [ARGUMENT…], where the arguments go to pytest. Roots are kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]
SYSTEMS = {"debian-12": "bookworm", "debian-13": "trixie", "ubuntu-24.04": "noble"}
PACKAGES = "git,make,python3,python3-venv,ca-certificates"
END_SECONDS = 20

# How this machine reaches packages: variables, and files of the machine and of the user
_VARIABLES = re.compile(
    r"(?i)(?!\w+_cache_dir)(?:(?:pip|uv|npm_config)_\w+|\w+_proxy"
    r"|(?:ssl_cert|git_ssl)_\w+|node_extra_ca_certs|(?:requests|curl)_ca_bundle)"
)
_CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
_FILES = ("etc/hosts", "etc/resolv.conf", "etc/pip.conf", "etc/xdg/pip", "etc/uv", "etc/npmrc", _CERTIFICATES)
_OF_USER = (".pip", ".config/pip", ".config/uv", ".npmrc")

# What stays: caches of packages, a JAVA_HOME, a Postgres that root's servers can reach, and a folder that Java makes
_KEPT = re.compile(r"(?:root|home/\w+)/(?:\.cache|\.npm|headwater)|var/tmp/headwater-\w+-\w{12}|tmp/hsperfdata_\w+")


class FailedError(Exception):
    """What stops us, in words."""


def main(system: str, user: str, arguments: list[str]) -> None:
    """Make the root, and run both in it. Raises FailedError."""
    if system not in SYSTEMS:
        raise FailedError(f"no system {system!r}; there are {', '.join(SYSTEMS)}")
    if os.geteuid() != 0:
        raise FailedError("a root of another system can be made by root only: sudo make bare")
    if shutil.which("debootstrap") is None:
        raise FailedError("needs debootstrap: apt-get install debootstrap")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headwater-bare"
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=cache))
    try:
        subprocess.run(["cp", "-a", _system(cache, SYSTEMS[system]), work / "root"], check=True)
        _furnish(_Machine(work / "root", user))
        # Mounts and processes are its own, and end with it. A shell is the first process, since it reaps orphans
        inside = [sys.executable, __file__, "--inside", str(work / "root"), user, system, *arguments]
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", '"$@"; exit $?', "sh", *inside]
        with subprocess.Popen(apart) as process:
            code = _awaited(process)
    finally:
        shutil.rmtree(work)
    if code != 0:
        raise FailedError(f"{system} as {user}: failed, as said above")


def _awaited(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process. Ctrl-C in our terminal reaches it, too: then it gets the time to end."""
    try:
        return process.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()
        raise


def _system(cache: Path, suite: str) -> Path:
    """The root of a system with the packages, made once."""
    made = cache / suite
    if made.exists():
        return made
    unfinished = Path(tempfile.mkdtemp(prefix=f"{suite}-", dir=cache))
    log = unfinished / "log"
    _say(f"making {suite} with {PACKAGES}")
    components = "main,universe" if suite == "noble" else "main"
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", f"--components={components}", suite]
    try:
        with log.open("wb") as out:
            done = subprocess.run([*command, unfinished / "root", *_mirror(suite)], stdout=out, stderr=out, check=False)
        if done.returncode != 0:
            raise FailedError(f"debootstrap could not make {suite}:\n{log.read_text()[-1000:]}")
        (unfinished / "root").rename(made)
    finally:
        shutil.rmtree(unfinished)
    return made


def _mirror(suite: str) -> list[str]:
    """The first of this machine's own package sources that has the suite; none leaves the choice to debootstrap."""
    if shutil.which("apt-get") is None:
        return []
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    sources = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    return [each for each in dict.fromkeys(sources) if _page(f"{each}dists/{suite}/Release")][:1]


@dataclass(frozen=True, slots=True)
class _Machine:
    """The root, and who works in it."""

    root: Path
    user: str

    @property
    def home(self) -> str:
        return "root" if self.user == "root" else f"home/{self.user}"

    def run(self, *command: str) -> str:
        """What a command of root prints there."""
        return subprocess.run(["chroot", self.root, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def _furnish(machine: _Machine) -> None:
    """Bring the user, the last commit, and how this machine reaches packages."""
    if machine.user != "root":
        machine.run("useradd", "--create-home", "--shell", "/bin/bash", machine.user)
    home = machine.root / machine.home
    clone = home / "headwater"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, clone], check=True)
    subprocess.run(["git", "-C", clone, "remote", "remove", "origin"], check=True)
    named = [value.removeprefix("/") for value in _variables().values() if Path(value).is_file()]
    for file in (*_FILES, *named):
        _copy(Path("/", file), machine.root / file)
    for file in _OF_USER:
        _copy(Path.home() / file, home / file)
    machine.run("chown", "--recursive", f"{machine.user}:", f"/{machine.home}")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.exists():
        target.unlink(missing_ok=True)  # a link, perhaps
        shutil.copy(source, target)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if _VARIABLES.fullmatch(name)}


def inside(machine: _Machine, system: str, arguments: list[str]) -> int:
    """Run both, among mounts and processes of our own, and print what came of it. Returns the exit code."""
    _mount(machine.root)
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', machine.run("cat", "/etc/os-release"), re.MULTILINE))
    python = machine.run("python3", "--version").strip()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    here = f"{release['PRETTY_NAME']}, {python}, {os.cpu_count()} cores, {memory:.0f} GB of memory"
    results = [_demo(machine), _test(machine, arguments)]
    _say(f"{system} as {machine.user}: {here}")
    for lines, _ in results:
        _say("\n        ".join(lines))
    return int(not all(right for _, right in results))


def _mount(root: Path) -> None:
    """What the kernel gives a machine, with devices and shared memory of its own."""

    def mount(*words: str | Path) -> None:
        subprocess.run(["mount", *words], check=True)

    dev = root / "dev"
    mount("--make-rprivate", "/")
    mount("-t", "proc", "proc", root / "proc")
    mount("--rbind", "/sys", root / "sys")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", dev)
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        (dev / name).touch()
        mount("--bind", f"/dev/{name}", dev / name)
    for name in ("pts", "shm"):
        (dev / name).mkdir()
    mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620,gid=5", "devpts", dev / "pts")
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", dev / "shm")
    links = {"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}
    for name, target in links.items():
        (dev / name).symlink_to(target)


def _demo(machine: _Machine) -> tuple[list[str], bool]:
    """`make demo`, its page, Ctrl-C, and what is left behind."""
    before = _files(machine)
    with _Terminal(machine, "make demo") as terminal:
        installed = terminal.seconds_until("starting Postgres")
        ready = terminal.seconds_until("Ctrl-C ends everything")
        if installed is None or ready is None:
            return [f"make demo: not ready, ended after {terminal.seconds:.0f} s"], False
        address = re.findall(r"demo app +(http://\S+)", terminal.said)[0]
        wrong = [] if b"<title>Headwater" in _page(address) else [f"no page at {address}"]
        terminal.interrupt()
        terminal.seconds_until(None)
    if "Traceback" in terminal.said:
        wrong.append("it printed a traceback")
    if _page(address):
        wrong.append(f"{address} still answers")
    wrong += [f"left behind: {each}" for each in _left(machine, before)]
    line = f"make demo: ready after {ready:.0f} s, {installed:.0f} of them for the installation"
    return [line, *(wrong or ["its page answered, and Ctrl-C left nothing behind"])], not wrong


def _page(address: str) -> bytes:
    """What is at an address; nothing where nobody answers."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - a setting, or what the demo said
            return bytes(answer.read())
    except OSError:
        return b""


def _processes(machine: _Machine) -> list[str]:
    """The processes beside us and the first one that do not end by themselves."""
    others: list[str] = []
    for _ in range(END_SECONDS):
        others = []
        for folder in (machine.root / "proc").glob("[0-9]*"):
            if int(folder.name) not in (1, os.getpid()):
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    others.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:100])
        if not others:
            break
        time.sleep(1)
    return others


def _files(machine: _Machine) -> set[str]:
    """Files where temporary ones are made and in the user's home, and in the clone what git does not ignore."""
    status = machine.run("git", "-c", "safe.directory=*", "-C", f"/{machine.home}/headwater", "status", "--porcelain")
    found = set(status.splitlines())
    for top in ("tmp", "var/tmp", "dev/shm", "run", machine.home):
        for name, folders, files in os.walk(machine.root / top):
            place = Path(name).relative_to(machine.root)
            folders[:] = [each for each in folders if not _KEPT.fullmatch(str(place / each))]
            found |= {str(place / each) for each in (*folders, *files)}
    return found


def _left(machine: _Machine, before: set[str]) -> list[str]:
    """What there is beside what was before: processes, and files that are in no new folder."""
    new = _files(machine) - before
    return [*_processes(machine), *sorted(each for each in new if str(Path(each).parent) not in new)]


def _test(machine: _Machine, arguments: list[str]) -> tuple[list[str], bool]:
    """`make test`, and what failed or was left out in it."""
    with _Terminal(machine, f"make test ARGS='-rfEs {' '.join(arguments)}'") as terminal:
        terminal.seconds_until(None)
    counts = re.findall(r"^=+ (.*) in [\d.]+s.* =+$", terminal.said, re.MULTILINE)
    named = re.findall(r"^(?:FAILED|ERROR) \w+/.*|^SKIPPED \[.*", terminal.said, re.MULTILINE)
    line = f"make test: {counts[-1] if counts else 'it did not come to the tests'}; {terminal.seconds:.0f} s"
    return [line, *named], terminal.code == 0


class _Terminal:
    """A command that the user gives at a terminal, in the clone. What it says is shown, too."""

    def __init__(self, machine: _Machine, command: str) -> None:
        self.said = ""
        self.code: int | None = None
        self._began = time.monotonic()
        self._process, self._terminal = pty.fork()
        if self._process == 0:
            _become(machine, command)

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.code is None:
            os.killpg(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)
        os.close(self._terminal)

    @property
    def seconds(self) -> float:
        """Since its start."""
        return time.monotonic() - self._began

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._terminal, b"\x03")

    def seconds_until(self, words: str | None) -> float | None:
        """How long it took from its start to say something, or to end; None when it ends without having said it."""
        while words is None or words not in self.said:
            waiting = select.select([self._terminal], [], [], 1.0)[0]
            more = self._read() if waiting else ""
            if not more and self._ended():
                return None
        return self.seconds

    def _read(self) -> str:
        try:
            more = os.read(self._terminal, 1 << 16).decode(errors="replace").replace("\r\n", "\n")
        except OSError:  # so Linux tells that nobody has the other side any more
            return ""
        self.said += more
        sys.stdout.write(more)
        sys.stdout.flush()
        return more

    def _ended(self) -> bool:
        process, status = os.waitpid(self._process, os.WNOHANG)
        if process:
            self.code = os.waitstatus_to_exitcode(status)
        return bool(process)


def _become(machine: _Machine, command: str) -> NoReturn:
    """Turn this process into the user's shell that runs a command in the clone."""
    places = "/usr/local/bin:/usr/bin:/bin"
    if machine.user == "root":
        places += ":/usr/local/sbin:/usr/sbin:/sbin"
    home = f"/{machine.home}"
    environment = {**_variables(), "HOME": home, "USER": machine.user, "PATH": places, "TERM": "dumb"}
    os.chroot(machine.root)
    os.chdir(f"{home}/headwater")
    become = ["setpriv", f"--reuid={machine.user}", f"--regid={machine.user}", "--init-groups"]
    os.execvpe(become[0], [*become, "/bin/sh", "-c", f"exec {command}"], environment)


def _say(text: str) -> None:
    sys.stdout.write(f"bare: {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        match sys.argv[1:]:
            case ["--inside", root, user, system, *arguments]:
                sys.exit(inside(_Machine(Path(root), user), system, arguments))
            case [system, user, *arguments]:
                main(system, user, arguments)
            case _:
                raise FailedError("usage: bare.py SYSTEM USER [ARGUMENT…]")
    except FailedError as error:
        sys.exit(f"bare: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
