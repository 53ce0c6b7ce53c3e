"""`make release` and `make audit`: what they refuse, and what they leave. What they call is replaced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.tagged_clone import ROOT, attempt, commit, make_clone, run, write_program

KUBERNETES = "docker/kubernetes/kustomization.yaml"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone whose one commit may be released as 1.2.0."""
    tree = tmp_path / "clone"
    make_clone(tree, ".ci/release", KUBERNETES)
    for part, suffix in (("dist", "-py3-none-any.whl"), ("sbom", ".cdx.json")):
        write_program(tree / ".ci" / part, f"mkdir -p dist && echo {part} > dist/headwater-1.2.0{suffix}")
    write_program(tree / ".venv/bin/python", f'exec {sys.executable} "$@"')
    edit(tree / "CHANGELOG.md", "## Unreleased (0.1.0)", "## 1.2.0 (2026-12-31)")
    edit(tree / KUBERNETES, '"0.1.0"', '"1.2.0"')
    commit(tree, "Headwater 1.2.0")
    run("git", "tag", "v1.2.0", cwd=tree)
    return tree


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def retagged(tree: Path) -> None:
    commit(tree, "something else")
    run("git", "tag", "--force", "v1.2.0", cwd=tree)


def test_release_needs_a_tag(clone: Path) -> None:
    run("sh", ".ci/release", cwd=clone)
    sums = (clone / "dist/SHA256SUMS").read_text()
    assert [line.split()[1] for line in sums.splitlines()] == [
        "headwater-1.2.0-py3-none-any.whl",
        "headwater-1.2.0.cdx.json",
    ]
    edit(clone / "CHANGELOG.md", "1.2.0 (", "1.2.1 (")
    refused(clone, "changes that are not committed")
    commit(clone, "later")
    refused(clone, "this commit has no tag v*: its version is 1.2.1.dev1+g")
    run("git", "tag", "--force", "v1.2.0", cwd=clone)
    refused(clone, "CHANGELOG.md has no section: ## 1.2.0 (")
    edit(clone / "CHANGELOG.md", "1.2.1 (", "1.2.0 (")
    edit(clone / KUBERNETES, '"1.2.0"', '"1.1.0"')
    retagged(clone)
    refused(clone, 'another newTag than "1.2.0"')


def refused(clone: Path, why: str) -> None:
    done = attempt("sh", ".ci/release", cwd=clone)
    assert done.returncode == 1
    assert why in done.stderr


@pytest.fixture
def audit(tmp_path: Path) -> Callable[..., tuple[int, str, list[str]]]:
    """Audits with these in place of pip-audit and npm. Returns the code, what is said, and what was asked for."""

    def run_audit(python: str, node: str = "true") -> tuple[int, str, list[str]]:
        for each in (
            "requirements.lock",
            "clients/python/requirements.lock",
            "docs/site/requirements.lock",
            ".ci/audit.lock",
            ".ci/audit",
        ):
            (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / each).write_bytes((ROOT / each).read_bytes())
        write_program(tmp_path / ".ci/environment", "")
        keep = f'while [ "$1" != -r ]; do shift; done; cat "$2" >> {tmp_path}/asked\n'
        write_program(tmp_path / ".venv/audit/bin/pip-audit", keep + python)
        write_program(tmp_path / ".venv/bin/python", node)
        done = attempt("sh", ".ci/audit", cwd=tmp_path)
        return done.returncode, done.stdout + done.stderr, (tmp_path / "asked").read_text().splitlines()

    return run_audit


def test_audit_of_locked_versions(audit: Callable[..., tuple[int, str, list[str]]]) -> None:
    code, said, asked = audit("true")
    assert code == 0
    assert "clients/web: no known vulnerabilities" in said
    assert {"colorama==0.4.6", "exceptiongroup==1.3.1"} <= set(asked), "those for other machines, too"
    assert len([each for each in asked if each.startswith("numpy==")]) == 3
    assert len(asked) == len(set(asked)) > 150


def test_audit_with_a_finding(audit: Callable[..., tuple[int, str, list[str]]]) -> None:
    code, said, _ = audit('grep -q "^h11==" "$2" && echo "h11 0.16.0 HAS-A-HOLE" && exit 1; exit 0')
    assert code == 1
    assert "HAS-A-HOLE" in said
    assert "tests/postgres: no known vulnerabilities" in said
    assert audit("true", "echo 'vite: severe'; exit 1")[0] == 1


def test_audit_without_network(
    audit: Callable[..., tuple[int, str, list[str]]],
) -> None:
    code, said, _ = audit("echo 'ConnectionError: no such host' >&2; exit 1")
    assert code == 2
    assert "it needs the network" in said
    assert "ConnectionError: no such host" in said
    assert "no known vulnerabilities" not in said
    assert audit("true", "echo 'npm error 405' >&2; exit 1")[0] == 2
