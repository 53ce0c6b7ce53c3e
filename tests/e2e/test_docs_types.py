"""The TypeScript of the docs fits the types of the packages that it is for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.doc_blocks import all_blocks
from tests.support.one_at_a_time import alone

HERE = Path(__file__).parent / "types"
PACKAGES = HERE / "node_modules"
_NODE = [sys.executable, "-m", "headwater.embedded.node"]
_NAME = re.compile(r"// ([\w.]+\.ts)\n")


@pytest.fixture
def packages() -> Path:
    """The packages, fetched if they are not there: nothing else needs them."""
    installed, lock = PACKAGES / ".package-lock.json", HERE / "package-lock.json"
    with alone(lock):
        if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
            subprocess.run([*_NODE, "npm", "ci", "--legacy-peer-deps", "--silent"], cwd=HERE, check=True, timeout=170)
    return PACKAGES


@pytest.mark.long
def test_typescript_types_match_sdks(packages: Path, tmp_path: Path) -> None:
    (tmp_path / "node_modules").symlink_to(packages)
    (tmp_path / "app.d.ts").write_text((HERE / "app.d.ts").read_text())
    for block in all_blocks("ts"):
        named = _NAME.match(block.code)
        assert named is not None, f"{block} does not begin with the name of its file"
        folder = tmp_path / Path(block.page).stem
        folder.mkdir(exist_ok=True)
        (folder / named[1]).write_text(block.code)
    settings = json.loads((HERE / "tsconfig.json").read_text())
    (tmp_path / "tsconfig.json").write_text(json.dumps({**settings, "include": ["*/*.ts", "app.d.ts"]}))
    compiler = packages / "typescript" / "bin" / "tsc"
    done = subprocess.run([*_NODE, "node", compiler, "-p", tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
