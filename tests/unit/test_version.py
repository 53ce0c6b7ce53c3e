"""The version is that of the newest tag v*, wherever one builds: in a clone, a shallow one, an archive, an sdist."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.support.tagged_clone import ROOT, commit, make_clone, run


def version(tree: Path, **environment: str) -> str:
    return run(sys.executable, "-m", "hatchling", "version", cwd=tree, **environment)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of three commits, without any tag."""
    tree = tmp_path / "clone"
    make_clone(tree)
    commit(tree, "second")
    commit(tree, "third")
    return tree


def archive(clone: Path, of: str = "HEAD") -> Path:
    """What `git archive` gives of a commit, unpacked."""
    tree = clone.with_name(f"archive-{of}")
    tree.mkdir()
    run("git", "archive", "--output", tree.with_suffix(".tar"), of, cwd=clone)
    run("tar", "-xf", tree.with_suffix(".tar"), cwd=tree)
    return tree


def test_version_without_tags(clone: Path) -> None:
    head = run("git", "rev-parse", "HEAD", cwd=clone)
    found, _, told = version(clone).partition("+g")
    assert found == "0.1.dev3"
    assert head.startswith(told)
    assert version(archive(clone)) == "0.0"


def test_version_of_a_tag(clone: Path) -> None:
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


def test_version_of_an_sdist(clone: Path) -> None:
    for each in (".ci/hatch_build.py", "clients/web/dist/index.html"):
        (clone / each).parent.mkdir(parents=True)
    shutil.copy(ROOT / ".ci/hatch_build.py", clone / ".ci")
    (clone / "clients/web/dist/index.html").touch()
    commit(clone, "with a demo")
    run("git", "tag", "v1.3.0", cwd=clone)
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", "../out", cwd=clone)
    (sdist,) = clone.with_name("out").glob("headwater-1.3.0.tar.gz")
    run("tar", "-xzf", sdist, cwd=sdist.parent)
    assert version(sdist.with_name("headwater-1.3.0")) == "1.3.0"
