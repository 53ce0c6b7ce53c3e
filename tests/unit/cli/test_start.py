"""What a command loads before it works. Who asks for help, or checks rules at each commit, waits for it each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
