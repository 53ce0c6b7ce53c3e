"""What is shipped: a wheel with every module, whose names, versions and documents agree."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from headwater_client import __version__, errors
from headwater_client.cli import main

ROOT = Path(__file__).parents[3]
CLIENT = ROOT / "clients" / "python"
PROJECT: dict[str, Any] = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [
    re.split(r"[^A-Za-z0-9-]", each)[0]
    for each in [*PROJECT["dependencies"], *chain.from_iterable(PROJECT["optional-dependencies"].values())]
]
MANUAL = (ROOT / "docs" / "python-client.md").read_text()


def test_wheel(tmp_path: Path) -> None:
    build: list[str | Path] = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    subprocess.run(build, cwd=CLIENT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(file.relative_to(CLIENT)) for file in (CLIENT / "headwater_client").rglob("*.py")}
    assert modules | {"headwater_client/py.typed"} <= held
    assert {name.split("/")[0] for name in held} == {"headwater_client", f"headwater_client-{__version__}.dist-info"}


def test_versions_agree() -> None:
    newest = re.search(r"^## (?:Unreleased \()?([^\s)]+)", (CLIENT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == __version__
    assert version("headwater-client") == __version__


def test_imports_are_dependencies() -> None:
    names = {"sqlite_utils": "sqlite-utils", "sqlcipher3": "sqlcipher3", "bson": "pymongo"}
    imported: set[str] = set()
    for file in (CLIENT / "headwater_client").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import():
                    imported |= {alias.name.split(".")[0] for alias in node.names}
                case ast.ImportFrom():
                    imported.add((node.module or "").split(".")[0])
                case _:
                    pass
    foreign = imported - set(sys.stdlib_module_names) - {"headwater_client"}
    assert {names.get(each, each) for each in foreign} <= set(DEPENDENCIES)


def test_no_numbered_placeholders() -> None:
    """From Python 3.14 on, they take no sequence of values."""
    sources = [file.read_text() for file in (CLIENT / "headwater_client").rglob("*.py")]
    assert [mark for source in sources for mark in re.findall(r"[ (=]\?[0-9]", source)] == []


def test_lock() -> None:
    lock = (CLIENT / "requirements.lock").read_text()
    assert [name for name in DEPENDENCIES if not re.search(rf"^{name}==", lock, re.MULTILINE)] == [], "run make lock"
    packages = re.findall(r"^[a-z0-9].*?(?=^[a-z0-9]|\Z)", lock, re.MULTILINE | re.DOTALL)
    assert [package.split()[0] for package in packages if "--hash=sha256:" not in package] == []
    assert "://" not in lock


def test_manual() -> None:
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.ClientError)]
    codes = {each.code for each in kinds} - {errors.ClientError.code}
    assert codes == set(re.findall(r"`(HWC_\w+)`", MANUAL))
    commands = set(main.commands)
    assert commands == set(re.findall(r"^\| `headwater-client (\w+)", MANUAL, re.MULTILINE))
    for command in commands:
        assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0
