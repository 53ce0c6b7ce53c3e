"""Writes docs/first-hour.md: three ways from nothing to a device with its rows, run here, with the minutes of each.

`make first-hour` runs them: a clone, a wheel, and the steps of docker/compose.yaml as processes. It takes 10 to 30
minutes and fetches packages; it needs the ports 8080 and 5432, and the programs of `_PROGRAMS`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from ruamel.yaml import YAML

from docs.generate.transcript import Transcript, TranscriptError, check_clean, check_room, copied
from headwater.embedded.postgres import EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "first-hour.md"
TABLES = ROOT / "tests" / "support" / "schemas" / "rails.sql"
_PROGRAMS = ("git", "make", "curl", "psql", "python3")
_PORTS = (8080, 8081, 5432)
_FOLLOWS = "following the stream"
_KEPT = "\n## your own tables\n"

_INTRO = """\
# The first hour

Three ways from nothing to a device with its rows, as `make first-hour` ran them and wrote this page. Then [your own
tables](#your-own-tables), and [bare machines](#bare-machines).

| | minutes | of which installation |
|---|---|---|
"""


@contextmanager
def your_postgres(folder: Path, name: str) -> Iterator[str]:
    """A Postgres with a database of yours, in the manner of Rails: the URI of the latter."""
    with EmbeddedPostgres(folder / "postgres", port=5432) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"create database {name}".encode())
        with psycopg.connect(server.dsn(name), autocommit=True) as own:
            own.execute(TABLES.read_bytes())
        yield f"postgresql://postgres@127.0.0.1:{server.port}/{name}"


def demo(on: Transcript) -> None:
    """The demo answers, and ends."""
    with on.running("headwater dev", "Ctrl-C ends everything"):
        on.run("curl --silent http://127.0.0.1:8080/demo/ | grep '<title>'")


def own_app(on: Transcript, uri: str) -> None:
    """A database of one's own, to a device of user 1."""
    on.run("mkdir app")
    on.enter("app")
    on.run(f"headwater init --yes --sdk none --uri {uri}")
    on.run("headwater rules explain sync.yaml")
    on.run("headwater source prepare")
    on.run("headwater doctor")
    with on.running("headwater serve", _FOLLOWS):
        a_device(on, "1", "select id, name from projects")


def a_device(on: Transcript, user: str, query: str) -> None:
    """A device of a user has its rows."""
    on.give(
        HEADWATER_CLIENT_TOKEN=on.run(
            f"headwater token {user}", shown=f"export HEADWATER_CLIENT_TOKEN=$(headwater token {user})"
        ).strip()
    )
    del on.lines[-1]  # the token, which was exported
    on.run("headwater-client sync device.db --endpoint http://127.0.0.1:8080 --once --timeout 120")
    on.run(f'headwater-client query device.db "{query}"')


def by_clone(on: Transcript) -> float:
    """Returns the seconds of the installation."""
    on.run(f"git clone --quiet {ROOT} headwater", shown="git clone --quiet … headwater")
    on.enter("headwater")
    on.run("make install")
    installed = on.seconds
    on.use(on.folder / "home" / "headwater" / ".venv" / "bin", ". .venv/bin/activate")
    demo(on)
    with your_postgres(on.folder, "shop") as uri:
        own_app(on, uri)
    return installed


def by_wheel(on: Transcript) -> float:
    """Returns the seconds of the installation."""
    wheels = on.folder / "home"
    for project in (ROOT, ROOT / "clients" / "python"):
        build = [
            str(ROOT / ".venv" / "bin" / "uv"),
            "build",
            "--quiet",
            "--no-build-isolation",
            "--python",
            sys.executable,
        ]
        subprocess.run([*build, "--wheel", "--out-dir", str(wheels), str(project)], check=True)
    on.say("the wheels of the service and of the Python client are here")
    on.run("ls *.whl")
    on.run("python3 -m venv headwater")
    on.use(wheels / "headwater" / "bin", ". headwater/bin/activate")
    service, client = (next(wheels.glob(f"{name}-*.whl")).name for name in ("headwater", "headwater_client"))
    on.run(f"pip install --quiet --disable-pip-version-check './{service}[spark,embedded]' ./{client}")
    installed = on.seconds
    demo(on)
    with your_postgres(on.folder, "shop") as uri:
        own_app(on, uri)
    return installed


_SECRETS = (
    "while read -r line; do case $line in *=) line=$line$(openssl rand -hex 32);; esac;"
    ' echo "$line"; done <env.example >.env'
)


def by_compose(on: Transcript, programs: Path) -> float:
    """What docker/compose.yaml runs, as processes, with the programs of the wheel in place of the image. Returns the
    seconds of the installation: none."""
    place = on.folder / "home"
    for name in ("env.example", "compose.yaml"):
        copied(ROOT / "docker" / name, place / "docker")
    for name in ("init.sh", "headwater.yaml", "sync.yaml"):
        copied(ROOT / "docker" / "single" / name, place / "docker" / "single")
    on.use(programs, "PATH=…:$PATH   # what the image has")
    on.enter("docker")
    on.run(_SECRETS)
    settings = dict(
        line.split("=", 1) for line in (place / "docker" / ".env").read_text().splitlines() if line[:1].isupper()
    )
    services = YAML(typ="safe").load((place / "docker" / "compose.yaml").read_text())["services"]
    on.say("the service `postgres`, whose host is this machine, with init.sh as its image runs it")
    with EmbeddedPostgres(on.folder / "postgres", settings=_server_settings(services), port=5432) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute("create database app")
        on.give(**settings, POSTGRES_USER="postgres", POSTGRES_DB="app", PGHOST="127.0.0.1", PGPORT=str(server.port))
        on.run("sh single/init.sh")
        on.say("the mounts: the config where the image has it, the store beside it")
        on.run("sed -i 's/@postgres:/@127.0.0.1:/; s#/var/lib/headwater/##' single/headwater.yaml")
        on.enter("single")
        admin_uri = services["prepare"]["environment"]["HEADWATER_ADMIN_URI"]
        on.give(
            HEADWATER_ADMIN_URI=re.sub(r"\$\{(\w+)[^}]*\}", lambda found: settings[found[1]], admin_uri).replace(
                "@postgres/", "@127.0.0.1/"
            )
        )
        on.say("the service `prepare`")
        on.run(f"headwater {' '.join(services['prepare']['command'])}")
        on.say("the service `headwater`")
        with on.running(f"headwater {' '.join(services['headwater']['command'])}", _FOLLOWS):
            on.run(
                f"{sys.executable} -I {copied(ROOT / 'docker' / 'healthy.py', place)} && echo healthy",
                shown="healthy && echo healthy   # the health check",
            )
            on.run("headwater doctor")
            a_device(on, "user-1", "select title, done from todos")
    return 0.0


def _server_settings(services: dict[str, dict[str, list[str]]]) -> dict[str, str]:
    words = services["postgres"]["command"][1:]
    return dict(word.split("=", 1) for word in words if "=" in word)


def page(ways: list[tuple[str, Transcript, float]]) -> str:
    """The page."""
    rows = "".join(f"| [{name}](#{name}) | {on.seconds / 60:.1f} | {part / 60:.1f} |\n" for name, on, part in ways)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    python = platform.python_version()
    machine = f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, {memory:.0f} GB of memory, Python {python}"
    sections = "".join(f"\n## {name}\n\n```console\n{chr(10).join(on.lines)}\n```\n" for name, on, _ in ways)
    return (
        f"{_INTRO}{rows}\n{machine}. The steps of the compose file ran as processes,\n"
        f"without a container engine fetching and building images.\n{sections}{_kept()}"
    )


def _kept() -> str:
    """The last sections of the page: a page with tables of one's own, and what `make bare` printed."""
    _, heading, rest = PAGE.read_text("utf-8").partition(_KEPT)
    return heading + rest


def main() -> None:
    """Run all three. Raises TranscriptError when one fails."""
    check_room(_PROGRAMS, _PORTS)
    with tempfile.TemporaryDirectory(prefix="first-hour-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the user that Postgres runs as goes through it
        clone, wheel, compose = (Transcript(folder / way) for way in ("clone", "wheel", "compose"))
        ways = [("clone", clone, by_clone(clone))]
        shutil.rmtree(clone.folder)  # several GB
        ways.append(("wheel", wheel, by_wheel(wheel)))
        ways.append(("compose", compose, by_compose(compose, wheel.folder / "home" / "headwater" / "bin")))
        text = page(ways)
        check_clean(text, [str(folder), str(ROOT)])
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except TranscriptError as error:
        sys.exit(f"first-hour: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    sys.stdout.write(f"first-hour: {PAGE.relative_to(ROOT)} after {(time.monotonic() - started) / 60:.0f} minutes\n")
