"""Which Java Spark gets: the first that fits, wrapped where it lacks a module that Spark asks for."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
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


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "which", lambda _name: None)


def test_the_configured_java_is_taken_as_it_is_when_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _fake_java(tmp_path / "jdk", "java.base@21.0.8 jdk.incubator.vector@21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java_home() == home


@pytest.mark.parametrize("version", ["11.0.2", "26"])
def test_a_java_of_the_wrong_version_gives_way_to_that_of_the_wheel(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "jdk", f"java.base@{version}")))
    assert java_home() != tmp_path / "jdk"


def test_the_java_of_the_wheel_starts_with_the_arguments_that_spark_gives_it() -> None:
    java = java_home() / "bin" / "java"
    done = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-XX:+UseSerialGC", "--version"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_only_the_missing_module_is_left_out_of_the_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _fake_java(tmp_path / "it's a $HOME", "java.base@17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(home))
    arguments = ["-Da=b c", "", "*", "$HOME", "--add-modules=java.sql", 'it\'s "quoted"']
    done = subprocess.run(
        [java_home() / "bin" / "java", *arguments[:3], "--add-modules=jdk.incubator.vector", *arguments[3:]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:-1] == arguments


def test_asking_again_with_the_answer_configured_gives_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    first = java_home()
    monkeypatch.setenv("JAVA_HOME", str(first))
    assert java_home() == first


def test_the_wrapper_goes_elsewhere_when_the_cache_directory_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "jdk", "java.base@17.0.9")))
    home = java_home()
    assert home.parent == tmp_path / f"headwater-{os.geteuid()}"
    assert home.parent.stat().st_mode & 0o777 == 0o700


def test_another_users_directory_is_not_trusted_with_the_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(_fake_java(tmp_path / "jdk", "java.base@17.0.9")))
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    home = java_home()
    assert home.parent.parent == tmp_path
    assert not home.is_relative_to(tmp_path / "cache")


def test_no_java_at_all_is_one_error_that_names_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = _fake_java(tmp_path / "jdk", "java.base@11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(NoJavaError, match=r"version 11.*install a Java runtime of version 17 to 25"):
        java_home()
