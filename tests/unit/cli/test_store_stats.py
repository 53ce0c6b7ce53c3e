"""What `headwater store stats` says of a store."""

from __future__ import annotations

import json
from typing import Any

from headwater.oplog.limits import ROW_LIMIT, stored_line
from headwater.oplog.lsn import Lsn
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import ReplicationProgress
from tests.support.command import Run
from tests.support.ruled_configs import LISTS, SERVED, TODOS
from tests.support.ruled_store import SOURCE, RuledStore


def stats(run: Run, *options: str) -> dict[str, Any]:
    outcome = run("store", "stats", "--json", *options)
    assert (outcome.code, outcome.err) == (0, "")
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def test_figures_are_those_of_the_store(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    found = stats(headwater_here)
    tables = {table["name"]: table for table in found["tables"]}
    assert (tables["public.todos"]["rows"], tables["public.lists"]["rows"]) == (TODOS, LISTS)
    assert all(table["bytes"] >= 4096 and table["left_out"] == [] for table in tables.values())
    todos = next(each for each in found["definitions"] if each["definition"].startswith("todos."))
    assert (todos["buckets"], todos["ops"]) == (LISTS, TODOS + LISTS)  # each begins with a CLEAR
    assert found["history"]["hot_ops"] == sum(each["ops"] for each in found["definitions"])
    (version,) = found["versions"]
    assert (version["state"], version["ops"]) == ("active", found["history"]["hot_ops"])
    sizes = found["bytes"]
    assert sizes["file"] >= sizes["rows"] + sizes["ops"] + sizes["segments"] + sizes["lookups"] > 0
    assert sizes["file"] >= sum(file.stat().st_size for file in (ruled.folder / "store").glob("store.db"))


def test_order_of_growth(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    grown = stats(headwater_here, "--top", "2")["buckets"]
    assert [len(found) for found in grown.values()] == [2, 2, 2]
    for measure, found in grown.items():
        assert found[0][measure] >= found[1][measure] > 0
    assert stats(headwater_here, "--top", "0")["buckets"] == {"ops_per_row": [], "size": [], "grown": []}


def test_rows_that_stand_are_told_from_ops(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    for bucket in stats(headwater_here, "--top", "100")["buckets"]["size"]:
        assert bucket["ops"] == bucket["rows"] + 1, "every row has one op, after the CLEAR"


def test_shown_stats(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    outcome = headwater_here("store", "stats")
    assert (outcome.code, outcome.err) == (0, "")
    for words in ("public.todos", f"{TODOS:,}", "history ", "disk ", "buckets with the most bytes", "  1  active"):
        assert words in outcome.out, words
    assert max(map(len, outcome.out.splitlines())) < 160


def test_too_large_rows(ruled: RuledStore, headwater_here: Run) -> None:
    ruled.serve(SERVED)
    line = "big\t" + "x" * ROW_LIMIT
    table = next(table for table in ruled.store.tables(SOURCE) if table.relation.name == "todos")
    flush = ruled.store.begin(ruled.lease)
    flush.put_rows(table.id, [CurrentRow("big", 0, stored_line(line), "", None)])
    flush.commit(SOURCE, ReplicationProgress(Lsn(10_000)))
    found = next(each for each in stats(headwater_here)["tables"] if each["name"] == "public.todos")
    assert found["left_out_rows"] == 1
    assert found["left_out"] == [{"row_id": "big", "ops": 0, "size": len(line)}]
    assert f"row big: the row, {len(line):,} bytes" in headwater_here("store", "stats").out
