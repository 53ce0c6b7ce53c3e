"""Which Node the tests and the demo's build get."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.embedded import node
from headwater.embedded.node import NoNodeError, find_node


def _fake_program(file: Path, prints: str) -> str:
    file.write_text(f"#!/bin/sh\necho {prints}\n")
    file.chmod(0o755)
    return str(file)


def _machine_has(monkeypatch: pytest.MonkeyPatch, programs: dict[str, str]) -> None:
    monkeypatch.setattr(shutil, "which", programs.get)


def test_node_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, npm = _fake_program(tmp_path / "node", "v25.1.0"), _fake_program(tmp_path / "npm", "11.0.0")
    _machine_has(monkeypatch, {"node": program, "npm": npm})
    assert find_node().node == Path(program)
    assert find_node().npm == (npm,)


def test_old_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _machine_has(monkeypatch, {"node": _fake_program(tmp_path / "node", "v20.20.2"), "npm": "/nowhere/npm"})
    found = find_node()
    command = [str(found.node), "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("v24")
    done = subprocess.run(
        [*found.npm, "--version"], env=found.environment(os.environ), capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split(".")[0]) >= 11


def test_no_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = _fake_program(tmp_path / "node", "v20.20.2")
    _machine_has(monkeypatch, {"node": old, "npm": old})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(NoNodeError, match=r"is version 20.*\.whl\[embedded\]'"):
        find_node()


def test_main_runs_node() -> None:
    command = [sys.executable, "-m", "headwater.embedded.node", "node", "-p", "6 * 7"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "42\n"


def test_main_runs_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, list[str], str]] = []
    monkeypatch.setattr(os, "execvpe", lambda file, words, env: ran.append((file, words, env["PATH"])))
    found = node.find_node()
    main: Callable[[list[str]], None] = node._main
    with pytest.raises(SystemExit, match="usage: "):
        main(["yarn"])
    main(["npm", "ci"])
    ((file, words, path),) = ran
    assert [file, *words[1:]] == [*found.npm[:1], *found.npm[1:], "ci"]
    assert path.startswith(str(found.node.parent))


def test_main_without_node(monkeypatch: pytest.MonkeyPatch) -> None:
    _machine_has(monkeypatch, {})
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SystemExit, match="there is no Node"):
        node._main(["node"])


def test_broken_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in (str(tmp_path / "gone"), _fake_program(tmp_path / "node", "hello")):
        _machine_has(monkeypatch, {"node": program, "npm": program})
        assert find_node().node != Path(program)
