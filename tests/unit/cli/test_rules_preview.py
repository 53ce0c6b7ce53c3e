"""What `headwater rules preview` shows is what a device of that user would get, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.insight.preview import LookupScan
from headwater.insight.rows import CurrentRows
from headwater.oplog.op import OpId
from headwater.source.connect import SourceSettings
from headwater.storage.open import open_store
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.requests import resolve
from headwater_rules.results import SyncRequest
from tests.support.command import Run
from tests.support.model_device import ModelBucket, contents, parse_ops
from tests.support.ruled_configs import (
    LISTS,
    PROJECTION_EDITED,
    REQUEST_EDITED,
    SERVED,
    STREAM_ADDED,
    TABLE_ADDED,
    TODOS,
    WRONG,
)
from tests.support.ruled_store import TEXT, RuledStore

Shown = dict[tuple[str, str], dict[str, object]]


def previewed(run: Run, yaml: str, *options: str, user: str = "u1", rows: int = 1_000) -> dict[str, object]:
    """The preview as a program reads it."""
    Path("new.yaml").write_text(yaml)
    outcome = run("rules", "preview", "new.yaml", "--user", user, "--rows", str(rows), "--json", *options)
    assert (outcome.code, outcome.err) == (0, ""), outcome
    found: dict[str, object] = json.loads(outcome.out)
    return found


def rows_of(preview: dict[str, object]) -> Shown:
    buckets = preview["buckets"]
    assert isinstance(buckets, list)
    return {(row["table"], row["id"]): row["data"] for bucket in buckets for row in bucket["first"]}


def on_a_device(ruled: RuledStore, yaml: str, user: str) -> Shown:
    """What a device of the user shows of the version that is served."""
    reader = open_store(ruled.store.address).open_reader()
    models: list[ModelBucket] = []
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        for bucket in resolve(compile_config(yaml).plan, SyncRequest({"sub": user}), snapshot.lookups).buckets:
            model = ModelBucket()
            for op in parse_ops(reader.chunk(bucket.name, OpId(0), snapshot.checkpoint.op_id).ops):
                model.apply(op)
            models.append(model)
    reader.close()
    return contents(models)


@pytest.mark.parametrize("yaml", [SERVED, REQUEST_EDITED, PROJECTION_EDITED], ids=["served", "lookup", "projection"])
def test_preview_equals_deploy(ruled: RuledStore, headwater_here: Run, yaml: str) -> None:
    ruled.serve(SERVED)
    before = {user: rows_of(previewed(headwater_here, yaml, user=user)) for user in ("u1", "u2", "nobody")}
    if yaml != SERVED:
        ruled.serve(yaml)
    for user, shown in before.items():
        assert shown == on_a_device(ruled, yaml, user)
    assert len(before["u1"]) == (LISTS + TODOS) // 4
    assert before["nobody"] == {}


def test_nothing_is_deployed_or_written(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    reader = open_store(ruled.store.address).open_reader()
    before = reader.newest()
    previewed(headwater_here, STREAM_ADDED)
    assert reader.newest() == before
    assert len(ruled.store.versions()) == 1
    reader.close()


def test_shown_preview(ruled: RuledStore, headwater_here: Run, tmp_path: Path) -> None:
    ruled.serve(SERVED)
    (tmp_path / "new.yaml").write_text(STREAM_ADDED)
    outcome = headwater_here(
        "rules", "preview", "new.yaml", "--user", "u1", "--rows", "2", "--subscribe", 'one={"list": "l5"}'
    )
    assert (outcome.code, outcome.err) == (0, "")
    lists, todos, one = (bucket.name for bucket in compile_config(STREAM_ADDED).plan.buckets)
    lines = outcome.out.splitlines()
    assert lines[0].startswith("u1 gets 7 buckets with 125 rows, ")
    start = next(n for n, line in enumerate(lines) if line.startswith(f'{lists}["u1"]'))
    assert "priority 3, stream lists (default): 5 rows, " in lines[start]
    assert lines[start + 1] == '  lists  l1  {"id":"l1","owner":"u1","name":"name 1"}'
    assert lines[start + 3] == "  … 3 more"
    assert sum(line.startswith(f"{todos}[") for line in lines) == 5
    (subscribed,) = [line for line in lines if line.startswith(f'{one}["l5"]')]
    assert "priority 1, stream one (subscription): 20 rows" in subscribed
    (found,) = [line for line in lines if line.startswith("  lookup.")]
    assert found.endswith('["u1"]: ["l1"]  ["l13"]  … 3 more')


def test_sizes_are_those_of_a_download(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    buckets = previewed(headwater_here, SERVED, rows=0)["buckets"]
    assert isinstance(buckets, list)
    reader = open_store(ruled.store.address).open_reader()
    newest = reader.newest()
    assert newest is not None
    for bucket in buckets:
        assert bucket["first"] == []
        downloaded = len(reader.chunk(bucket["name"], OpId(0), newest.checkpoint.op_id).ops)
        assert bucket["size"] == pytest.approx(downloaded, rel=0.05)
    reader.close()


CLAIMS = (
    SERVED
    + """\
  named:
    auto_subscribe: true
    query: SELECT * FROM lists WHERE name = auth.parameter('called') AND owner = auth.user_id()
  chosen:
    auto_subscribe: true
    accept_potentially_dangerous_queries: true
    query: SELECT * FROM lists WHERE name = connection.parameter('it''s "it"')
"""
)


def test_claims_and_parameters_count(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    options = ("--claims", '{"called": "name 5", "sub": "u1"}', "--params", '{"it\'s \\"it\\"": "name 6"}')
    found = previewed(headwater_here, CLAIMS, *options)
    by_stream = {bucket["reasons"][0]["stream"]: bucket for bucket in found["buckets"]}  # type: ignore[attr-defined]
    assert [row["id"] for row in by_stream["named"]["first"]] == ["l5"]
    assert [row["id"] for row in by_stream["chosen"]["first"]] == ["l6"]
    assert found["warnings"] == []


def test_wrong_request(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    options = ("--params", '{"it": 1}', "--subscribe", "ones", "--subscribe", 'one={"list": "l1", "lust": 2}')
    assert previewed(headwater_here, STREAM_ADDED + CLAIMS.removeprefix(SERVED), *options)["warnings"] == [
        "the rules have no stream ones; did you mean `one`?",
        "stream one does not use the subscription's parameter lust",
        "no stream uses the client parameter it",
    ]
    whole = STREAM_ADDED.replace("subscription.parameter('list')", "subscription.parameters()")
    assert previewed(headwater_here, whole, "--subscribe", 'one={"lust": 2}')["warnings"] == []


def test_failing_rows(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.create("odd", {"id": TEXT, "meta": TEXT}, [["o1", "{}"], ["o2", "{oops"], ["o3", "oops"]])
    yaml = SERVED + "  odd:\n    auto_subscribe: true\n    query: SELECT id, meta ->> 'a' AS a FROM odd\n"
    found = previewed(headwater_here, yaml)
    assert ("odd", "o1") in rows_of(found)
    warnings = found["warnings"]
    assert isinstance(warnings, list)
    assert len(warnings) == 1
    assert str(warnings[0]).startswith("odd.")
    assert str(warnings[0]).endswith("left out of 2 rows")


def test_missing_table(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    assert previewed(headwater_here, TABLE_ADDED)["missing_tables"] == ["public.notes"]
    shown = headwater_here("rules", "preview", "new.yaml", "--user", "u1").out
    assert "the store has no rows of public.notes: they are missing from this preview" in shown


def test_unknown_types(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.create("moods", {"id": TEXT, "mood": 99_999}, [["m1", "sad"]])
    found = previewed(headwater_here, SERVED + "  moods: {auto_subscribe: true, query: SELECT * FROM moods}\n")
    assert rows_of(found)["moods", "m1"] == {"id": "m1", "mood": "sad"}
    where = "such columns of public.moods"
    assert found["warnings"] == [
        f"the source can't be asked about the types that it defines: {where} are treated as text"
    ]


def test_left_out_stream(ruled: RuledStore, headwater_here: Run, tmp_path: Path) -> None:
    with (tmp_path / "headwater.yaml").open("a") as file:
        file.write("api: {parameters: {max_buckets_per_connection: 3}}\n")
    found = previewed(headwater_here, SERVED)
    assert {table for table, _ in rows_of(found)} == {"lists"}
    warnings = found["warnings"]
    assert isinstance(warnings, list)
    (warning,) = warnings
    assert warning.startswith("stream todos: left out by a limit: the ")
    assert "api.parameters.max_buckets_per_connection allows 3" in warning


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--claims", "{"), "Invalid value for '--claims': not JSON"),
        (("--claims", "[1]"), "must be a JSON object"),
        (("--claims", '{"sub": "u2"}'), "Invalid value for '--claims': its sub names another user"),
        (("--params", "x"), "Invalid value for '--params': not JSON"),
        (("--subscribe", "one={"), "Invalid value for '--subscribe': not JSON"),
        (("--subscribe", "={}"), "has no stream; write STREAM or STREAM=JSON"),
        (("--rows", "-1"), "Invalid value for '--rows'"),
    ],
    ids=str,
)
def test_wrong_arguments(
    ruled: RuledStore, headwater_here: Run, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "new.yaml").write_text(SERVED)
    outcome = headwater_here("rules", "preview", "new.yaml", "--user", "u1", *options)
    assert outcome.code == 2
    assert said in outcome.err


def test_preview_needs_a_user(ruled: RuledStore, headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "new.yaml").write_text(WRONG)
    assert "Missing option '--user'" in headwater_here("rules", "preview", "new.yaml").err
    outcome = headwater_here("rules", "preview", "new.yaml", "--user", "u1")
    assert (outcome.code, outcome.err.startswith("new.yaml:\nerror [")) == (1, True)


@pytest.mark.parametrize("kept", [0, 7, 1_000])
def test_lookup_scan(ruled: RuledStore, kept: int) -> None:
    source = SourceSettings("127.0.0.1", "shop", "app")
    query = "SELECT * FROM todos WHERE list_id IN (SELECT list_id FROM members WHERE user_id IN auth.parameter('who'))"
    plan = compile_config(f'config: {{edition: 3}}\nstreams: {{s: {{query: "{query}"}}}}\n').plan
    reader = open_store(ruled.store.address).open_reader()
    scan = LookupScan(CurrentRows(ruled.store, [source]), plan, (), reader, kept)
    name = plan.lookups[0].name
    for user in ("u1", "u2", "nobody"):
        key = f'{name}["{user}"]'
        expected = [] if user == "nobody" else [f'["l{i}"]' for i in range(LISTS) if i % 4 == int(user[1])]
        assert sorted(scan([key])[key]) == sorted(expected)
    reader.close()
