"""Blocks of code in the docs: YAML and JSON are read here, and everything else is run by another test or says that it
is not run."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from headwater.cli.config import load_config
from headwater.config import ConfigSource
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode
from headwater_rules.testing.cases import read_cases
from tests.support.doc_blocks import Block, all_blocks, blocks_of

RUN = {
    "sh": {"docs/backup.md", "docs/migrating.md", "docs/quick-start.md", "docs/rule-tools.md", "docs/service-config.md",
           "docs/uploads.md"},
    "python": {"docs/connect-python.md", "docs/python-client.md", "docs/quick-start.md", "docs/testing-rules.md"},
    "sql": {"docs/migrating.md", "docs/operating.md", "docs/quick-start.md", "docs/security.md", "docs/sync-config.md",
            "docs/uploads.md"},  # those of the sync config are compiled below
    "js": {"docs/uploads.md"},
}  # fmt: skip
"""The pages whose blocks of a language are run by tests/e2e/test_docs_pages.py. That of JavaScript is the connector of
tests/e2e/test_uploads.py."""
READ = {"yaml", "json", "ts", "", "text"}
"""YAML and JSON are read here, TypeScript by tests/e2e/test_docs_types.py; the others are what something prints."""
SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"
BASE = {
    "replication": {"connections": [{"type": "postgresql", "uri": "postgresql://u:p@db/d", "sslmode": "disable"}]},
    "client_auth": {"jwks": {"keys": [{"kty": "oct", "alg": "HS256", "k": SECRET}]}, "audience": ["app"]},
}
RULES_KEYS = {"config", "streams", "bucket_definitions", "with"}


def test_blocks_are_run() -> None:
    left = [
        f"{block} {block.language}"
        for block in all_blocks()
        if block.runs and block.language not in READ and block.page not in RUN.get(block.language, ())
    ]
    assert left == [], "run them in a test, or write *Not run here.* before them"


def test_listed_pages_have_blocks() -> None:
    for language, pages in RUN.items():
        assert {block.page for block in all_blocks(language)} == pages, language


def test_commands_are_in_blocks_of_shell() -> None:
    """What is in a block without a language is not run."""
    plain = [
        block for block in all_blocks("") if re.search(r"^(?:headwater|make|pip|npm|curl) ", block.code, re.MULTILINE)
    ]
    assert [str(block) for block in plain] == []


def _of_environment(name: re.Match[str]) -> str:
    """A secret for each variable: operators don't share one."""
    return base64.urlsafe_b64encode(f"{name[1]:-<32}".encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=str)
def test_yaml_blocks(block: Block, tmp_path: Path) -> None:
    tree = YAML(typ="safe").load(re.sub(r"!env (\w+)", _of_environment, block.code))
    if tree is None:
        return  # a comment for an editor
    if RULES_KEYS & set(tree):
        text = (
            block.code if "config" in tree or "bucket_definitions" in tree else f"config: {{edition: 3}}\n{block.code}"
        )
        assert [str(warning) for warning in compile_config(text).warnings] == []
        return
    if "cases" in tree:
        assert read_cases(block.code).cases
        return
    path = tmp_path / "headwater.yaml"
    with path.open("w") as file:
        YAML(typ="safe").dump({**BASE, **tree}, file)
    assert load_config(ConfigSource(path=path), {}, tmp_path).warnings == ()


def test_warned_queries() -> None:
    (block,) = (each for each in all_blocks("sql") if each.page == "docs/sync-config.md")
    for query in block.code.splitlines():
        rules = f"config: {{edition: 3}}\nstreams:\n  one:\n    query: {json.dumps(query)}\n"
        assert [each.code for each in compile_config(rules).warnings] == [RuleCode.DANGEROUS]


@pytest.mark.parametrize("block", all_blocks("json"), ids=str)
def test_json_can_be_read(block: Block) -> None:
    assert json.loads(block.code)


def test_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "*Not run here: no phone.*\n\n```sh\na\n```\n\n```sh\nb\n```\n\n1. x\n\n    ```sql\n    select 1\n    ```\n"
    )
    assert [(each.language, each.code, each.runs) for each in blocks_of(page)] == [
        ("sh", "a\n", False), ("sh", "b\n", True), ("sql", "select 1\n", True),
    ]  # fmt: skip
