"""`headwater rules check`: all findings of several files, in the forms that people, editors and CI read; and what
`explain` and `schema` say of one."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.support.command import Run

GOOD = "config: {edition: 3}\nstreams:\n  s:\n    query: SELECT * FROM t WHERE owner = auth.user_id()\n"
WRONG = GOOD.replace("owner =", "own(er) =")
WARNED = GOOD.replace("auth.user_id()", "subscription.parameter('x')")
SCHEMA = '{"format": 1, "tables": [{"name": "t", "columns": {"id": "uuid", "ownr": "text"}}]}'


def test_several_files_are_checked_at_once(headwater_here: Run, tmp_path: Path) -> None:
    for name, text in (("a.yaml", WRONG), ("b.yaml", GOOD), ("c.yaml", WARNED)):
        (tmp_path / name).write_text(text)
    outcome = headwater_here("rules", "check", "a.yaml", "b.yaml", "c.yaml")
    assert outcome.code == 1
    assert outcome.out == (
        "b.yaml: ok, 1 stream, 1 bucket definition, 0 lookups\nc.yaml: ok, 1 stream, 1 bucket definition, 0 lookups\n"
    )
    assert "a.yaml:\nerror [HW_R104]: unknown function `own`" in outcome.err
    assert "^^^" in outcome.err
    assert "c.yaml:\nwarning [HW_R201]" in outcome.err


def test_warnings_fail_only_when_asked_to(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(WARNED)
    assert headwater_here("rules", "check", "c.yaml").code == 0
    outcome = headwater_here("rules", "check", "c.yaml", "--warnings-as-errors")
    assert (outcome.code, outcome.out) == (1, "")
    assert "error [HW_R201]" in outcome.err


def test_bucket_per_row_warns(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        GOOD.replace("owner = auth.user_id()", "id IN (SELECT k FROM m WHERE u = auth.user_id())")
    )
    for option in ((), ("--warnings-as-errors",)):
        outcome = headwater_here("rules", "check", "c.yaml", *option)
        assert outcome.code == 0
        assert "warning [HW_R209]: `s` has one bucket for each row of `public.t`, by `id`" in outcome.err
        assert "--> line 3" in outcome.err
        assert "api.parameters.max_buckets_per_connection" in outcome.err
    (told,) = json.loads(headwater_here("rules", "check", "c.yaml", "--json").out)["warnings"]
    assert (told["code"], told["severity"]) == ("HW_R209", "warning")


def test_places_for_editors(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(WRONG)
    outcome = headwater_here("rules", "check", "a.yaml", "--json")
    found = json.loads(outcome.out)
    assert (outcome.code, found["code"], found["warnings"]) == (1, "PSYNC_R0001", [])
    (error,) = found["errors"]
    assert {name: error[name] for name in ("file", "code", "severity", "message")} == {
        "file": "a.yaml",
        "code": "HW_R104",
        "severity": "fatal",
        "message": "unknown function `own`",
    }
    place = error["place"]
    assert WRONG[place["start"] : place["end"]] == place["text"] == "own(er)"
    assert (place["line"], place["column"], place["end_line"], place["end_column"]) == (4, 34, 4, 41)


def test_place_over_lines(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        GOOD.replace("SELECT * FROM t WHERE owner =", "|\n      SELECT * FROM t WHERE own(\n        er) =")
    )
    (error,) = json.loads(headwater_here("rules", "check", "a.yaml", "--json").out)["errors"]
    place = error["place"]
    assert place["text"] == "own(\n        er)"
    assert (place["line"], place["column"], place["end_line"], place["end_column"]) == (5, 29, 6, 12)


def test_annotations(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(WRONG)
    (tmp_path / "c.yaml").write_text(WARNED)
    outcome = headwater_here("rules", "check", "a.yaml", "c.yaml", "--format", "github")
    error, warning = outcome.out.splitlines()
    assert outcome.code == 1
    assert error.startswith(
        "::error file=a.yaml,line=4,col=34,endLine=4,endColumn=41,title=HW_R104::unknown function `own`; "
    )
    assert warning.startswith("::warning file=c.yaml,line=4,col=12,")


def test_config_through_a_pipe(headwater_here: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, code in ((GOOD, 0), (WRONG, 1)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        outcome = headwater_here("rules", "check", "-")
        assert outcome.code == code
        assert "stdin:" in outcome.out + outcome.err


def test_schema_file(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(GOOD)
    (tmp_path / "schema.json").write_text(SCHEMA)
    outcome = headwater_here("rules", "check", "b.yaml", "--schema-file", "schema.json")
    assert outcome.code == 1
    assert "error [HW_R302]: no column `owner` in `t`" in outcome.err
    assert "help: did you mean `ownr`?" in outcome.err
    assert outcome.err.endswith(
        "note: compared with the tables in schema.json\n"
        "note: if a migration adds what is not there yet, pass --allow-missing\n"
    )
    allowed = headwater_here("rules", "check", "b.yaml", "--schema-file", "schema.json", "--allow-missing")
    assert allowed.code == 0
    assert "warning [HW_R302]: no column `owner` in `t`" in allowed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no.yaml",), "no.yaml"),
        (("b.yaml", "--schema-file", "no.json"), "the source schema can't be read"),
        (("b.yaml", "--schema-file", "b.yaml"), "not a source schema: not JSON"),
        (("b.yaml", "--schema"), "there is no service config"),
        (("b.yaml", "--schema", "--schema-file", "x"), "either --schema or --schema-file"),
        ((), "Missing argument 'FILE"),
    ],
)
def test_wrong_arguments(headwater_here: Run, tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "b.yaml").write_text(GOOD)
    outcome = headwater_here("rules", "check", *arguments)
    assert outcome.code != 0
    assert message in outcome.err


MINE = GOOD.replace("  s:", "  mine:")


def test_explain_config(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "sync.yaml").write_text(MINE)
    outcome = headwater_here("rules", "explain", "sync.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    assert "stream mine: priority 3, clients subscribe to it" in outcome.out
    assert "sends    * of t where owner = auth.user_id()" in outcome.out
    found = json.loads(headwater_here("rules", "explain", "sync.yaml", "--json").out)
    (stream,) = found["streams"]
    assert (stream["name"], stream["reads"]) == ("mine", ["auth.user_id()"])
    assert found["tables"] == [{"name": "t", "moves": [["owner", ["mine"]]], "rights": [], "sent": ["mine"]}]


def test_client_schema(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "sync.yaml").write_text(MINE)
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
