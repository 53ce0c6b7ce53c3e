"""What holds for the project as a whole: its locks, its version, and what it promises of itself."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from headwater_rules.compiler.compile import compile_config
from tests.bench import curves, data

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = (ROOT / "requirements.lock").read_text()
DOCS_LOCK = (ROOT / "docs/site/requirements.lock").read_text()
AUDIT_LOCK = (ROOT / ".ci/audit.lock").read_text()
NODE_LOCKS = sorted(path for path in ROOT.glob("*/**/package-lock.json") if "node_modules" not in path.parts)


def _requirements() -> list[str]:
    """What others make: the Python client is built from the same clone."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    return [
        *project["dependencies"],
        *(each for name, extra in project["optional-dependencies"].items() if name != "client" for each in extra),
        *groups["dev"],
    ]


def test_every_dependency_is_locked() -> None:
    names = [re.split(r"[^A-Za-z0-9._-]", each)[0].replace(".", "-") for each in _requirements()]  # as the lock spells
    missing = [name for name in names if not re.search(rf"^{re.escape(name)}(\[[a-z]+\])?==", LOCK, re.MULTILINE)]
    assert missing == [], "run make lock"
    assert "mkdocs-material==" in DOCS_LOCK
    assert "pip-audit==" in AUDIT_LOCK


@pytest.mark.parametrize(
    ("lock", "least"),
    [(LOCK, len(_requirements())), (DOCS_LOCK, 20), (AUDIT_LOCK, 20)],
    ids=["all", "docs", "audit"],
)
def test_every_locked_package_has_a_hash(lock: str, least: int) -> None:
    packages = re.findall(r"^[a-z0-9].*?(?=^[a-z0-9]|\Z)", lock, re.MULTILINE | re.DOTALL)
    assert len(packages) > least
    assert [package.split()[0] for package in packages if "--hash=sha256:" not in package] == []


def test_locks_name_no_host() -> None:
    assert len(NODE_LOCKS) >= 2
    assert "://" not in LOCK + DOCS_LOCK + AUDIT_LOCK
    assert [path for path in NODE_LOCKS if '"resolved"' in path.read_text()] == []


@pytest.mark.parametrize("lock", NODE_LOCKS, ids=lambda path: path.parent.name)
def test_node_locks(lock: Path) -> None:
    package = json.loads(lock.with_name("package.json").read_text())
    assert json.loads(lock.read_text())["packages"][""].get("dependencies", {}) == package.get("dependencies", {})


def test_postgres_versions() -> None:
    packages = json.loads((ROOT / "tests/postgres/package.json").read_text())["dependencies"]
    majors = {name: spec.rpartition("@")[2].split(".")[0] for name, spec in packages.items()}
    named = re.search(r"^POSTGRES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named is not None
    assert majors == {f"pg{major}": major for major in named[1].split()}


@pytest.mark.parametrize("changelog", ["CHANGELOG.md", "clients/python/CHANGELOG.md"])
def test_changelog_order(changelog: str) -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / changelog).read_text(), re.MULTILINE)
    found = [re.fullmatch(r"Unreleased \(([^\s)]+)\)|(\S+) \(\d{4}-\d\d-\d\d\)", each) for each in headings]
    assert all(found), "## Unreleased (1.2.0), or ## 1.2.0 (2026-12-31)"
    versions = [Version(each[1] or each[2]) for each in found if each]
    assert versions == sorted(versions, reverse=True)
    assert [bool(each[1]) for each in found if each][1:] == [False] * (len(versions) - 1), "only one is unreleased"


def test_make_help() -> None:
    helped = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    documents = (ROOT / "README.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    used = set(re.findall(r"(?:^|`)make ([a-z-]+)", documents, re.MULTILINE))
    assert used >= {"demo", "install", "test", "lint", "lock", "bench"}
    assert used <= set(re.findall(r"^  make ([a-z-]+)", helped, re.MULTILINE))


def test_make_bare() -> None:
    named = [(ROOT / each).read_text() for each in ("Makefile", "README.md", "CONTRIBUTING.md", "docs/first-hour.md")]
    for each in set(re.findall(r"\b(?:debian|ubuntu)-\d[\d.]*\b", "".join(named))):
        assert f'"{each}": ' in (ROOT / ".ci/bare.py").read_text()


def test_benchmark_streams() -> None:
    tables = max(curves.TABLES)
    assert len(compile_config(data.small_streams(tables)).plan.buckets) == tables


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_document_links(document: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_tree_of_the_guide() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    folders = re.findall(r"^((?:backend|sync_rules|clients|tests)/\S*)\s", guide, re.MULTILINE)
    assert len(folders) >= 8
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
