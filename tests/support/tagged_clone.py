"""A small repository with this one's build files, for what depends on tags and on what is committed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitattributes", ".git_archival.txt", ".gitignore")
_NOBODY = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def attempt(*command: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command, without the settings of whoever runs the tests."""
    given = {**os.environ, **_NOBODY, "GIT_CONFIG_GLOBAL": os.devnull, **environment}
    return subprocess.run(
        [str(each) for each in command], cwd=cwd, env=given, capture_output=True, text=True, check=False, timeout=120
    )


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What a command prints; it has to succeed."""
    done = attempt(*command, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(tree: Path, message: str) -> None:
    """Commit everything."""
    run("git", "add", "--all", cwd=tree)
    run("git", "commit", "--quiet", "--allow-empty", "--message", message, cwd=tree)


def make_clone(tree: Path, *more: str) -> None:
    """A repository of one commit, with the build files and those that are named."""
    tree.mkdir()
    for each in (*_FILES, *more):
        (tree / each).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / each, tree / each)
    run("git", "init", "--quiet", cwd=tree)
    commit(tree, "first")


def write_program(path: Path, text: str) -> None:
    """A shell script in place of something that takes long, or needs the network."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
