"""What `headwater rules diff` says of a change: which definitions it touches, and what devices download for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headwater.insight.diff import SAMPLE_PAGE, Tally
from headwater.storage.open import open_store
from headwater_rules.compiler.compile import compile_config
from tests.support.command import Run
from tests.support.model_device import parse_ops
from tests.support.ruled_configs import (
    LISTS,
    PROJECTION_EDITED,
    REQUEST_EDITED,
    SERVED,
    STREAM_ADDED,
    TABLE_ADDED,
    TODOS,
    USERS,
    WRONG,
)
from tests.support.ruled_store import TEXT, RuledStore


def diff(run: Run, yaml: str, *options: str) -> dict[str, dict[str, object]]:
    """The definitions of a diff, by stream (or `was.` and the stream for those that are gone)."""
    Path("new.yaml").write_text(yaml)
    outcome = run("rules", "diff", "new.yaml", "--json", *options)
    assert (outcome.code, outcome.err) == (0, "")
    found: dict[str, dict[str, object]] = {}
    for each in json.loads(outcome.out)["definitions"]:
        stream = each["name"].partition(".")[0]
        found[stream if each["change"] != "removed" else f"was.{stream}"] = each
    return found


def test_same_config(ruled: RuledStore, headwater_here: Run, tmp_path: Path) -> None:
    ruled.serve(SERVED)
    (tmp_path / "new.yaml").write_text(SERVED.replace("streams:", "streams:  # who gets what"))
    outcome = headwater_here("rules", "diff", "new.yaml")
    assert outcome.code == 0
    assert outcome.err.startswith("note: its tables are not compared with the source: [HW_2001]")
    assert outcome.out.startswith("new.yaml against version 1, served since 20")
    assert "\nno difference: devices download nothing\n" in outcome.out
    assert json.loads(headwater_here("rules", "diff", "new.yaml", "--json").out)["same"] is True


def test_edited_request_side(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    assert {each["change"] for each in diff(headwater_here, REQUEST_EDITED).values()} == {"unchanged"}
    shown = headwater_here("rules", "diff", "new.yaml").out
    assert "lookups: 1 changed; they are never downloaded" in shown
    assert "  todos: changed in its lookups; no row is downloaded again" in shown


def test_price_of_a_changed_definition(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    todos = diff(headwater_here, PROJECTION_EDITED)["todos"]
    assert (todos["change"], todos["before"]) == ("changed", compile_config(SERVED).plan.buckets[1].name)
    assert todos["stored"]["ops"] == TODOS + LISTS  # type: ignore[index]  # each bucket begins with a CLEAR
    guess = todos["to_download"]
    assert isinstance(guess, dict)
    assert (guess["buckets"], guess["rows"], guess["largest_rows"]) == (LISTS, TODOS, TODOS // LISTS)
    assert (guess["exact"], guess["rows_read"], guess["tables"]) == (True, TODOS, ["public.todos"])
    ruled.serve(PROJECTION_EDITED)
    stats = {each.definition: each for each in open_store(ruled.store.address).definition_stats()}
    assert guess["size"] == pytest.approx(stats[str(todos["name"])].size, rel=0.02)
    assert guess["largest_size"] == pytest.approx(stats[str(todos["name"])].largest_size, rel=0.02)


def test_shown_downloads(ruled: RuledStore, headwater_here: Run, tmp_path: Path) -> None:
    ruled.serve(SERVED)
    (tmp_path / "new.yaml").write_text(PROJECTION_EDITED + STREAM_ADDED.removeprefix(SERVED))
    outcome = headwater_here("rules", "diff", "new.yaml")
    old, new = (compile_config(text).plan.buckets[1].name for text in (SERVED, PROJECTION_EDITED))
    lines = outcome.out.splitlines()
    assert lines[lines.index("changed: devices download the new rows and drop the old ones") + 1] == (
        f"  {new}  (was {old})  from public.todos"
    )
    (download,) = [line for line in lines if "400 rows" in line and "in 20 buckets" in line][:1]
    assert "per bucket 20 rows" in download
    assert "added: devices that get them download them" in lines
    assert lines[-1] == "downloads are estimated from all 400 rows of public.todos in the store"
    assert "  todos: changed in its rows" in lines


def test_removed_definition(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(STREAM_ADDED)
    found = diff(headwater_here, SERVED)
    assert found["was.one"]["to_download"] is None
    assert found["was.one"]["stored"]["buckets"] == LISTS  # type: ignore[index]
    assert "removed: devices drop them" in headwater_here("rules", "diff", "new.yaml").out


def test_missing_table(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    assert diff(headwater_here, TABLE_ADDED)["notes"]["to_download"] is None
    assert json.loads(headwater_here("rules", "diff", "new.yaml", "--json").out)["missing_tables"] == ["public.notes"]
    shown = headwater_here("rules", "diff", "new.yaml").out
    assert "to download: unknown" in shown
    assert "the store has no rows of public.notes" in shown


def test_sample(ruled: RuledStore, headwater_here: Run) -> None:
    rows = [[f"e{i}", f"u{i // 10}"] for i in range(5 * SAMPLE_PAGE)]
    ruled.create("events", {"id": TEXT, "user_id": TEXT}, rows)
    ruled.serve(SERVED)
    yaml = SERVED + "  events:\n    query: SELECT * FROM events WHERE user_id = auth.user_id()\n"
    sampled = diff(headwater_here, yaml, "--sample", str(2 * SAMPLE_PAGE))["events"]["to_download"]
    assert isinstance(sampled, dict)
    assert (sampled["exact"], sampled["rows_read"], sampled["rows"]) == (False, 2 * SAMPLE_PAGE, len(rows))
    assert (
        "estimated from a sample of 4,000 rows"
        in headwater_here("rules", "diff", "new.yaml", "--sample", str(2 * SAMPLE_PAGE)).out
    )
    whole = diff(headwater_here, yaml, "--all")["events"]["to_download"]
    assert isinstance(whole, dict)
    assert (whole["exact"], whole["rows_read"], whole["buckets"]) == (True, len(rows), len(rows) // 10)
    assert sampled["size"] == pytest.approx(whole["size"], rel=0.05)


NOT_COMPARED = (
    "note: its tables are not compared with the source: [HW_2001] the source database cannot be reached: connection to"
    ' server at "127.0.0.1", port 1024 failed: Connection refused Is the server running on that host and accepting'
    " TCP/IP connections? (127.0.0.1:1024/shop); check that Postgres runs there, and hostname, port and firewall in"
    " replication.connections\n"
)
PER_ROW = SERVED.replace("owner = auth.user_id()", "id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())")


def test_rows_for_everybody(ruled: RuledStore, headwater_here: Run, tmp_path: Path) -> None:
    ruled.serve(SERVED)
    whole = SERVED.replace("owner = auth.user_id()", "owner = auth.user_id() OR true")
    (tmp_path / "new.yaml").write_text(whole)
    told = f"warning: every user gets {LISTS} rows of public.lists from stream lists\n"
    assert headwater_here("rules", "diff", "new.yaml").err == told + NOT_COMPARED
    (found,) = json.loads(headwater_here("rules", "diff", "new.yaml", "--json").out)["for_everybody"]
    assert (found["stream"], found["table"], found["rows"]) == ("lists", "public.lists", LISTS)
    ruled.serve(whole)
    assert headwater_here("rules", "diff", "new.yaml").err == told + NOT_COMPARED, "what is stored is counted too"
    (tmp_path / "other.yaml").write_text(SERVED)
    (tmp_path / "headwater.yaml").unlink()
    alone = headwater_here("rules", "diff", "new.yaml", "--against", "other.yaml").err
    assert "warning: every user gets all rows of public.lists from stream lists\n" in alone


def test_buckets_per_row(ruled: RuledStore, headwater_here: Run, tmp_path: Path) -> None:
    ruled.serve(SERVED)
    (tmp_path / "new.yaml").write_text(PER_ROW)
    told = (
        f"warning: stream lists has one bucket for each row of public.lists, by id: {LISTS} now, and a device"
        " may have 1,000 (api.parameters.max_buckets_per_connection)\n"
    )
    assert headwater_here("rules", "diff", "new.yaml").err == told + NOT_COMPARED
    outcome = headwater_here("rules", "diff", "new.yaml", "--json")
    (found,) = json.loads(outcome.out)["one_bucket_per_row"]
    assert (outcome.err, found["stream"], found["table"], found["buckets"]) == ("", "lists", "public.lists", LISTS)
    ruled.serve(PER_ROW)
    again = headwater_here("rules", "diff", "new.yaml")
    assert again.err == told + NOT_COMPARED, "what is stored already is counted too"
    with (tmp_path / "headwater.yaml").open("a") as file:
        file.write("api: {parameters: {max_buckets_per_connection: 3}}\n")
    assert "a device may have 3 (api" in headwater_here("rules", "diff", "new.yaml").err


def test_buckets_per_row_without_a_store(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SERVED)
    (tmp_path / "b.yaml").write_text(PER_ROW)
    outcome = headwater_here("rules", "diff", "b.yaml", "--against", "a.yaml")
    assert outcome.err.startswith(
        "warning: stream lists has one bucket for each row of public.lists, by id, and a device"
    )


def test_against_a_file_without_service(headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SERVED)
    (tmp_path / "b.yaml").write_text(STREAM_ADDED)
    outcome = headwater_here("rules", "diff", "b.yaml", "--against", "a.yaml")
    assert outcome.code == 0
    assert outcome.out.startswith("b.yaml against a.yaml\n")
    assert "  one: added" in outcome.out
    assert outcome.err == (
        "note: numbers of rows and bytes need a store\n"
        "note: its tables are not compared with the source: there is no service config\n"
    )


def test_against_a_file_beside_a_store(ruled: RuledStore, headwater_here: Run, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(SERVED)
    one = diff(headwater_here, STREAM_ADDED, "--against", "a.yaml")["one"]
    assert one["to_download"]["rows"] == TODOS  # type: ignore[index]


def test_before_the_first_version(ruled: RuledStore, headwater_here: Run) -> None:
    assert {each["change"] for each in diff(headwater_here, SERVED).values()} == {"added"}
    assert "against no version: none is served yet" in headwater_here("rules", "diff", "new.yaml").out


@pytest.mark.parametrize("option", [(), ("--json",)], ids=str)
def test_wrong_rules(ruled: RuledStore, headwater_here: Run, tmp_path: Path, option: tuple[str, ...]) -> None:
    (tmp_path / "wrong.yaml").write_text(WRONG)
    outcome = headwater_here("rules", "diff", "wrong.yaml", *option)
    assert outcome.code == 1
    if option:
        assert len(json.loads(outcome.out)["errors"]) == 2
    else:
        assert outcome.err.startswith("wrong.yaml:\nerror [")


def test_definition_stats(ruled: RuledStore) -> None:
    ruled.serve(SERVED)
    plan = compile_config(SERVED).plan
    stats = {each.definition: each for each in open_store(ruled.store.address).definition_stats()}
    reader = open_store(ruled.store.address).open_reader()
    with reader.snapshot() as snapshot:
        assert snapshot is not None
        upto = snapshot.checkpoint.op_id
    names = {
        plan.buckets[0].name: [f"u{i}" for i in range(USERS)],
        plan.buckets[1].name: [f"l{i}" for i in range(LISTS)],
    }
    for definition, values in names.items():
        sizes = []
        for value in values:
            chunk = reader.chunk(f'{definition}["{value}"]', type(upto)(0), upto)
            sizes.append((len(chunk.ops) + 1, len(parse_ops(chunk.ops))))
        found = stats[definition]
        assert (found.buckets, found.size, found.ops) == (
            len(values),
            sum(s for s, _ in sizes),
            sum(n for _, n in sizes),
        )
        assert (found.largest_size, found.largest_ops) == (max(s for s, _ in sizes), max(n for _, n in sizes))
    reader.close()


def test_tally_memory() -> None:
    tally = Tally(followed=1_000)
    for row in range(60_000):
        tally.add(f"b[{row % 20_000}]", 10 if row else 10_000, 1.0)
    assert (round(tally.rows), round(tally.size)) == (60_000, 609_990)
    assert tally.buckets(exact=True) == pytest.approx(20_000, rel=0.15)
    assert len(tally._buckets) <= 1_000


def test_tally_of_a_sample() -> None:
    own, shared = Tally(), Tally()
    for row in range(1_000):  # every tenth of 10,000 rows: each in a bucket of its own, or 100 to a bucket
        own.add(f"b[{row}]", 10, 10.0)
        shared.add(f"b[{row % 100}]", 10, 10.0)
    assert own.buckets(exact=False) == 10_000
    assert shared.buckets(exact=False) == 100
    assert shared.largest == (100, 1_000)
