"""The version is that of the newest tag v*, wherever one builds: in a clone, a shallow one, an archive, an sdist."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitattributes", ".git_archival.txt")
_NOBODY = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def run(*command: object, cwd: Path, **environment: str) -> str:
    given = {**os.environ, **_NOBODY, "GIT_CONFIG_GLOBAL": os.devnull, **environment}
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, env=given, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def version(tree: Path, **environment: str) -> str:
    return run(sys.executable, "-m", "hatchling", "version", cwd=tree, **environment)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of three commits, without any tag."""
    tree = tmp_path / "clone"
    tree.mkdir()
    for each in _FILES:
        shutil.copy(ROOT / each, tree)
    run("git", "init", "--quiet", cwd=tree)
    run("git", "add", "--all", cwd=tree)
    for message in ("first", "second", "third"):
        run("git", "commit", "--quiet", "--allow-empty", "--message", message, cwd=tree)
    return tree


def archive(clone: Path, commit: str = "HEAD") -> Path:
    """What `git archive` gives of a commit, unpacked."""
    tree = clone.with_name(f"archive-{commit}")
    run("git", "archive", "--output", tree.with_suffix(".tar"), commit, cwd=clone)
    with tarfile.open(tree.with_suffix(".tar")) as file:
        file.extractall(tree, filter="data")
    return tree


def test_a_clone_without_tags_is_before_every_release(clone: Path) -> None:
    commit = run("git", "rev-parse", "HEAD", cwd=clone)
    found, _, told = version(clone).partition("+g")
    assert found == "0.1.dev3"
    assert commit.startswith(told)
    assert version(archive(clone)) == "0.0"


def test_a_tagged_commit_is_that_version_and_the_next_one_follows_it(clone: Path) -> None:
    run("git", "tag", "v1.2.0rc1", "HEAD~2", cwd=clone)
    run("git", "tag", "v1.2.0", "HEAD~1", cwd=clone)
    run("git", "tag", "client-v7.0.0", cwd=clone)
    assert version(clone).startswith("1.2.1.dev1+g"), "the client's tags are not of the service"
    assert version(archive(clone)).startswith("1.2.1.dev1+g")
    assert version(archive(clone, "v1.2.0")) == "1.2.0"
    run("git", "clone", "--quiet", "--depth", "1", "--branch", "v1.2.0", clone.as_uri(), "../shallow", cwd=clone)
    assert version(clone.with_name("shallow")) == "1.2.0"


def test_without_git_the_version_is_told(clone: Path) -> None:
    shutil.rmtree(clone / ".git")
    told = "SETUPTOOLS_SCM_PRETEND_VERSION"
    assert told in (ROOT / "docker/Dockerfile").read_text()
    assert version(clone, **{told: "1.2.0"}) == "1.2.0"
    assert version(clone, **{told: ""}) == "0.0"


def test_an_sdist_keeps_its_version(clone: Path) -> None:
    run("git", "tag", "v1.2.0", cwd=clone)
    for each in (".ci/hatch_build.py", "clients/web/dist/index.html"):
        (clone / each).parent.mkdir(parents=True)
    shutil.copy(ROOT / ".ci/hatch_build.py", clone / ".ci")
    (clone / "clients/web/dist/index.html").touch()
    run("git", "add", "--all", cwd=clone)
    run("git", "commit", "--quiet", "--message", "with the demo", cwd=clone)
    run("git", "tag", "v1.3.0", cwd=clone)
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", "../out", cwd=clone)
    (sdist,) = clone.with_name("out").glob("headwater-1.3.0.tar.gz")
    with tarfile.open(sdist) as file:
        file.extractall(clone.with_name("unpacked"), filter="data")
    assert version(clone.with_name("unpacked") / "headwater-1.3.0") == "1.3.0"
