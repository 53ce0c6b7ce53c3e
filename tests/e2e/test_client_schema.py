"""The TypeScript that `headwater rules schema` prints, taken by the stock SDK."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.embedded.node import find_node
from tests.support.command import Outcome, output_of
from tests.support.node_process import FOLDER, npm_ci

EXAMPLES = Path(__file__).parents[2] / "sync_rules" / "examples"
SCHEMA = """\
{"format": 1, "tables": [
  {"name": "lists", "columns": {"id": "uuid", "owner_id": "uuid", "name": "text", "rank": "real"}},
  {"name": "list_members", "columns": {"list_id": "uuid", "__proto__": "integer", "new": "integer", "a-b": "text"}},
  {"name": "todos", "columns": {"id": "uuid", "list_id": "uuid", "done": "boolean", "12": "text", "größe": "text"}}
]}"""
CHECK = """\
import { AppSchema } from './AppSchema.ts';
AppSchema.validate();
console.log(JSON.stringify(AppSchema.toJSON()));
"""


@pytest.mark.e2e
def test_generated_schema_in_stock_sdk(headwater_here: Callable[..., Outcome], tmp_path: Path) -> None:
    npm_ci(FOLDER)
    (tmp_path / "schema.json").write_text(SCHEMA)
    generated = headwater_here(
        "rules", "schema", str(EXAMPLES / "todo_lists.yaml"), "-l", "ts", "--schema-file", "schema.json"
    )
    assert generated.code == 0, generated
    (tmp_path / "AppSchema.ts").write_text(generated.out)
    (tmp_path / "check.mjs").write_text(CHECK)
    (tmp_path / "node_modules").symlink_to(FOLDER / "node_modules")
    printed = output_of(find_node().node, "check.mjs", cwd=tmp_path)
    tables = {table["name"]: table for table in json.loads(printed)["tables"]}
    assert list(tables) == ["lists", "list_members", "todos", "attachments"]
    columns = {name: {each["name"]: each["type"] for each in table["columns"]} for name, table in tables.items()}
    assert columns["list_members"] == {"list_id": "TEXT", "__proto__": "INTEGER", "new": "INTEGER", "a-b": "TEXT"}
    assert columns["todos"] == {"list_id": "TEXT", "done": "INTEGER", "12": "TEXT", "größe": "TEXT"}
