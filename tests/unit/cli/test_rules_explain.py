"""`headwater rules explain` and `headwater rules schema` as commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.support.command import Outcome

Run = Callable[..., Outcome]

RULES = "config: {edition: 3}\nstreams:\n  mine:\n    query: SELECT * FROM t WHERE owner = auth.user_id()\n"
WRONG = RULES.replace("owner =", "own(er) =")


def test_explain_config(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "sync.yaml").write_text(RULES)
    outcome = headwater_here("rules", "explain", "sync.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    assert "stream mine: priority 3, clients subscribe to it" in outcome.out
    assert "sends    * of t where owner = auth.user_id()" in outcome.out
    found = json.loads(headwater_here("rules", "explain", "sync.yaml", "--json").out)
    (stream,) = found["streams"]
    assert (stream["name"], stream["reads"]) == ("mine", ["auth.user_id()"])
    assert found["tables"] == [{"name": "t", "moves": [["owner", ["mine"]]], "rights": [], "sent": ["mine"]}]


def test_client_schema(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "sync.yaml").write_text(RULES)
    (tmp_path / "schema.json").write_text(
        '{"format": 1, "tables": [{"name": "t", "columns": {"id": "uuid", "owner": "text", "n": "int"}}]}'
    )
    outcome = headwater_here("rules", "schema", "sync.yaml", "-l", "sql", "--schema-file", "schema.json")
    assert outcome.code == 0
    assert 'CREATE TABLE "t" (\n  id TEXT NOT NULL PRIMARY KEY,\n  "owner" TEXT,\n  "n" INTEGER\n);' in outcome.out
    unknown = headwater_here("rules", "schema", "sync.yaml", "-l", "sql")
    assert '"owner" TEXT -- type not known' in unknown.out


def test_explain_wrong_config(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "sync.yaml").write_text(WRONG)
    for arguments in (("explain", "sync.yaml"), ("schema", "sync.yaml", "-l", "ts")):
        outcome = headwater_here("rules", *arguments)
        assert (outcome.code, outcome.out) == (1, "")
        assert "unknown function `own`" in outcome.err
