"""How modules lean on each other, and what a command loads before it works: who asks for help, or checks rules at each
commit, waits for it each time. That imports go down only is held by the contracts in pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

from docs.generate import rooms


def test_no_import_cycles() -> None:
    """Not within functions either, where it only shows when they run."""
    graph = grimp.build_graph("headwater", "headwater_rules", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize(
    ("module", "libraries"),
    [
        ("headwater.cli.config", {"starlette", "uvicorn", "sqlglot"}),
        ("headwater.cli.main", {"asyncio"}),
        ("headwater.cli.replicate", {"starlette", "uvicorn"}),
        ("headwater.cli.serve", {"bson"}),
        ("headwater.pipeline.spark.tasks", {"pyarrow"}),
    ],
)
def test_a_process_starts_without_what_it_does_not_need(module: str, libraries: set[str]) -> None:
    script = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert not libraries & set(done.stdout.split())


def test_modules_per_folder() -> None:
    files = [*(rooms.ROOT / "backend").rglob("*.py"), *(rooms.ROOT / "sync_rules").rglob("*.py")]
    counts = Counter(file.parent for file in files if file.name != "__init__.py")
    assert {folder: number for folder, number in counts.items() if number > 20} == {}


def test_architecture_picture() -> None:
    assert rooms.PICTURE.read_text("utf-8") == rooms.picture(), "run make reference"


def test_architecture_names_modules() -> None:
    page = (rooms.ROOT / "docs" / "architecture.md").read_text("utf-8")
    roots = [rooms.ROOT / "backend/headwater", rooms.ROOT / "sync_rules", rooms.ROOT]
    roots += [root for each in roots[:2] for root in each.rglob("*") if root.is_dir()]
    named = set(re.findall(r"`([\w/]+\.py|\w+(?:/\w+)+/?)`", page))
    assert named
    assert sorted(name for name in named if not any((root / name).exists() for root in roots)) == []


_LOADED = """
import sys
from headwater.cli.main import main
sys.argv[1:] = {arguments}
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def loaded_by(*arguments: str) -> set[str]:
    """Names of all modules of a process that ran a command."""
    code = _LOADED.format(arguments=list(arguments))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(ended.stderr.split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["rules", "--help"], ["serve", "--help"], ["init", "--help"], ["doctor", "--help"]]
)
def test_imports_of_help(arguments: list[str]) -> None:
    dear = {"sqlglot", "psycopg", "starlette", "cryptography", "ruamel.yaml", "httpcore", "pyspark", "rich"}
    assert loaded_by(*arguments) & dear == set()


def test_imports_of_rules_check(tmp_path: Path) -> None:
    rules = tmp_path / "sync.yaml"
    rules.write_text("config: {edition: 3}\nstreams: {notes: {query: SELECT * FROM notes}}\n")
    loaded = loaded_by("rules", "check", str(rules))
    assert "headwater_rules.compiler.compile" in loaded
    assert loaded & {"psycopg", "starlette", "cryptography", "httpcore", "pyspark", "rich"} == set()
