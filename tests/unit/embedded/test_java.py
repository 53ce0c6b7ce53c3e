"""Which Java Spark gets: the first that fits, wrapped where it lacks a module that Spark asks for."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.embedded.java import NoJavaError, java_home


def _fake_java(home: Path, modules: str) -> Path:
    """A `java` that lists these modules and otherwise prints its arguments, one a line."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"""#!/bin/sh
if [ "$1" = --list-modules ]; then printf '%s\\n' {modules}; else printf '%s\\n' "$@"; fi
""")
    program.chmod(0o755)
    return home


Configure = Callable[..., Path]


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Configure:
    """Makes a Java that lists these modules, and names it by JAVA_HOME."""

    def configure(modules: str, name: str = "jdk") -> Path:
        home = _fake_java(tmp_path / name, modules)
        monkeypatch.setenv("JAVA_HOME", str(home))
        return home

    return configure


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda _name: None)


def test_configured_java(configured: Configure) -> None:
    assert configured("java.base@21.0.8 jdk.incubator.vector@21.0.8") == java_home()


@pytest.mark.parametrize("version", ["11.0.2", "26"])
def test_java_of_the_wrong_version(version: str, configured: Configure) -> None:
    assert configured(f"java.base@{version}") != java_home()


def test_java_of_the_wheel() -> None:
    java = java_home() / "bin" / "java"
    done = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-XX:+UseSerialGC", "--version"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_wrapper_leaves_out_the_missing_module(configured: Configure) -> None:
    configured("java.base@17.0.9", "it's a $HOME")
    arguments = ["-Da=b c", "", "*", "$HOME", "--add-modules=java.sql", 'it\'s "quoted"']
    java = str(java_home() / "bin" / "java")
    command = [java, *arguments[:3], "--add-modules=jdk.incubator.vector", *arguments[3:]]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:-1] == arguments


def test_configured_wrapper(monkeypatch: pytest.MonkeyPatch) -> None:
    first = java_home()
    monkeypatch.setenv("JAVA_HOME", str(first))
    assert java_home() == first


def test_unusable_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: Configure) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    configured("java.base@17.0.9")
    home = java_home()
    assert home.parent == tmp_path / f"headwater-{os.geteuid()}"
    assert home.parent.stat().st_mode & 0o777 == 0o700


def test_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: Configure) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    configured("java.base@17.0.9")
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    home = java_home()
    assert home.parent.parent == tmp_path
    assert not home.is_relative_to(tmp_path / "cache")


def test_no_java(monkeypatch: pytest.MonkeyPatch, configured: Configure) -> None:
    configured("java.base@11.0.2")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(NoJavaError, match=r"version 11.*install a Java runtime of version 17 to 25"):
        java_home()
