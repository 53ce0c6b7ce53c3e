"""The wheel has what `headwater dev` shows. `make dist` tries a whole one in an empty environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.support.tagged_clone import run

ROOT = Path(__file__).parents[2]
_FIND = """
import sys
sys.path[:] = [each for each in sys.path if "site-packages" not in each]
sys.path.insert(0, sys.argv[1])
from headwater.dev import find_demo_files
files = find_demo_files()
print(files.has_app, files.rules.is_relative_to(sys.argv[1]), "streams:" in files.rules.read_text())
"""


def build(root: Path, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    uv = Path(sys.executable).with_name("uv")
    options = [*more, "--no-build-isolation", "--offline", "--python", sys.executable]
    command = [str(uv), "build", *options, "--out-dir", str(out), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_demo_is_in_wheel(tmp_path: Path) -> None:
    built = build(ROOT, tmp_path, "--wheel")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(tmp_path / "installed")
    found = subprocess.run(
        [sys.executable, "-I", "-c", _FIND, tmp_path / "installed"], capture_output=True, text=True, check=True,
        cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert found.stdout.split() == ["True", "True", "True"]


def test_no_wheel_without_app(tmp_path: Path) -> None:
    for each in ("pyproject.toml", "README.md", "LICENSE", ".ci/hatch_build.py"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_bytes((ROOT / each).read_bytes())
    refused = build(tmp_path, tmp_path / "out", "--wheel")
    assert refused.returncode != 0
    assert "run `make dist`, which builds it first" in refused.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_wheel_is_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of `make dist`, demo app included, but for the packages that it is built with."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", run("git", "log", "-1", "--format=%ct", cwd=ROOT))
    made = []
    for folder, umask in (("one", 0o022), ("another/with a longer name", 0o077)):
        clone = tmp_path / folder / "clone"
        run("git", "clone", "--quiet", ROOT.as_uri(), clone, cwd=ROOT)
        web = clone / "clients/web"
        shutil.copytree(ROOT / "clients/web/node_modules", web / "node_modules", symlinks=True)
        before = os.umask(umask)
        try:
            run(sys.executable, "-m", "headwater.embedded.node", "npm", "run", "build", "--silent", cwd=web)
            built = build(clone, tmp_path / folder / "dist")
        finally:
            os.umask(before)
        assert built.returncode == 0, built.stderr
        files = (tmp_path / folder / "dist").glob("headwater-*")
        made.append({each.name: sha256(each.read_bytes()).hexdigest() for each in files})
    assert {Path(name).suffix for name in made[0]} == {".whl", ".gz"}
    assert made[0] == made[1]
