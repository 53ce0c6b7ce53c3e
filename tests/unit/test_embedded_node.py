"""Which Node the tests and the demo's build get."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.embedded.node import NoNode, find_node


def _fake_program(file: Path, prints: str) -> str:
    file.write_text(f"#!/bin/sh\necho {prints}\n")
    file.chmod(0o755)
    return str(file)


def _machine_has(monkeypatch: pytest.MonkeyPatch, programs: dict[str, str]) -> None:
    monkeypatch.setattr(shutil, "which", programs.get)


def test_the_machines_node_is_taken_when_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, npm = _fake_program(tmp_path / "node", "v25.1.0"), _fake_program(tmp_path / "npm", "11.0.0")
    _machine_has(monkeypatch, {"node": node, "npm": npm})
    assert find_node().node == Path(node)
    assert find_node().npm == (npm,)


def test_an_old_node_gives_way_to_that_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _machine_has(monkeypatch, {"node": _fake_program(tmp_path / "node", "v20.20.2"), "npm": "/nowhere/npm"})
    node = find_node()
    assert subprocess.run([node.node, "--version"], capture_output=True, text=True, check=True).stdout.startswith("v24")
    done = subprocess.run(
        [*node.npm, "--version"], env=node.environment(os.environ), capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split(".")[0]) >= 11


def test_no_node_at_all_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _fake_program(tmp_path / "node", "v20.20.2")
    _machine_has(monkeypatch, {"node": old, "npm": old})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(NoNode, match=r"is version 20.*\.whl\[embedded\]'"):
        find_node()


def test_the_module_runs_node_from_the_command_line() -> None:
    command = [sys.executable, "-m", "headwater.embedded.node", "node", "-p", "6 * 7"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "42\n"
