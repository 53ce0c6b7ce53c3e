"""Computed tables in a sync config: how they are read, and what names mean them."""

from __future__ import annotations

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode, SyncConfigError
from headwater_rules.plan import ComputedTable, Refresh, SyncPlan, TablePattern
from headwater_rules.schema import SourceSchema
from headwater_rules.testing import RulesTest
from headwater_rules.versions import ChangeKind, compare, definitions_of, of_tag

QUERY = "SELECT account_id, count(*) AS n FROM orders GROUP BY account_id"


def config(
    more: str = "", *, query: str = QUERY, reads: str = "SELECT * FROM totals WHERE account_id = auth.user_id()"
) -> str:
    return (
        "config: {edition: 3}\n"
        f"tables:\n  totals:\n    query: {query}\n    key: [account_id]\n{more}"
        f"streams:\n  s: {{query: {reads}}}\n"
    )


def plan(more: str = "", **parts: str) -> SyncPlan:
    return compile_config(config(more, **parts)).plan


def refresh(text: str) -> Refresh:
    return plan(f"    refresh: {text}\n").computed[0].refresh


def error(text: str) -> str:
    with pytest.raises(SyncConfigError) as caught:
        compile_config(text)
    (found,) = caught.value.errors
    assert found.span is not None
    return f"{found.code.value} {found.message}"


def test_table_is_read() -> None:
    table = ComputedTable("default", "totals", QUERY, ("account_id",), Refresh(after_read=True))
    assert plan(query=f"{QUERY} ; ").computed == (table,)
    assert table.pattern in plan().tables()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{every: 5m}", Refresh(every=300.0)),
        ("{every: 90, least: 1h}", Refresh(every=90.0, least=3600.0)),
        ("{every: 500ms, least: 0s, timeout: 2s}", Refresh(every=0.5, least=0.0, timeout=2.0)),
        ("{after: auto}", Refresh(after_read=True)),
        ("{after: [Orders, sales.lines]}", Refresh(after=(("public", "orders"), ("sales", "lines")))),
        ("""{after: ['"Sales.EU"."Or""ders"']}""", Refresh(after=(("Sales.EU", 'Or"ders'),))),
    ],
)
def test_refresh_is_read(text: str, expected: Refresh) -> None:
    assert refresh(text) == expected


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("    refresh: {}\n", "HW_R002 nothing refreshes this table"),
        ("    refresh: {every: soon}\n", "HW_R003 `every` must be a duration"),
        ("    refresh: {every: 0s}\n", "HW_R003 `every` must be a duration"),
        ("    refresh: {every: 1d, timeout: 0}\n", "HW_R003 `timeout` must be a duration"),
        ("    refresh: {after: orders}\n", "HW_R002 `after` must be a list of tables, or `auto`"),
        ("    refresh: {after: [a.b.c]}\n", "HW_R002 this is no name of a table"),
        ("    refresh: {often: true, every: 1d}\n", "HW_R002 unknown key `often` in `refresh` of table `totals`"),
        ("    when: now\n", "HW_R002 unknown key `when` in table `totals`"),
    ],
)
def test_mistake_is_named(more: str, said: str) -> None:
    assert error(config(more)) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (config().replace(f"    query: {QUERY}\n", ""), "HW_R002 table `totals` has no `query`"),
        (config().replace("    key: [account_id]\n", ""), "HW_R002 table `totals` has no `key`"),
        (config().replace("[account_id]", "[]"), "HW_R002 `key` must name columns, each once"),
        (config().replace("[account_id]", "[a, a]"), "HW_R002 `key` must name columns, each once"),
        (config(query='" ; "'), "HW_R101 the query of table `totals` is empty"),
        (config().replace("  totals:", "  to.tals:"), "HW_R002 `to.tals` can't be the name of a table"),
    ],
)
def test_definition_must_be_whole(text: str, said: str) -> None:
    assert error(text) == said


def test_table_that_no_stream_reads_is_a_warning() -> None:
    (warning, *_) = compile_config(config(reads="SELECT * FROM orders WHERE id = auth.user_id()")).warnings
    assert warning.code is RuleCode.NO_EFFECT
    assert "`totals`" in warning.message


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("totals", TablePattern("default", "", "totals")),
        ("TOTALS", TablePattern("default", "", "totals")),
        ("public.totals", TablePattern("default", "public", "totals")),
        ('"tot%"', TablePattern("default", "public", "tot%")),
    ],
)
def test_name_means_computed_table(name: str, pattern: TablePattern) -> None:
    (found,) = plan(reads=f"'SELECT * FROM {name} WHERE account_id = auth.user_id()'").tables()
    assert found == pattern


def test_patterns_of_other_tables_do_not_match_it() -> None:
    computed = TablePattern("default", "", "totals")
    assert computed.matches("default", "", "totals")
    assert not computed.matches("default", "public", "totals")
    assert not TablePattern("default", "%", "tot%").matches("default", "", "totals")


def test_query_is_no_part_of_what_devices_have() -> None:
    assert definitions_of(plan()) == definitions_of(plan(query="SELECT 'a' AS account_id"))


def test_source_has_its_own_tables() -> None:
    found = plan("    source: west\n")
    assert found.tables() == (TablePattern("west", "", "totals"),)
    assert of_tag(found, "west").computed == found.computed
    assert of_tag(found, "default").computed == ()


def test_schema_that_lacks_it_is_no_error() -> None:
    assert compile_config(config(), schema=SourceSchema(())).plan == plan()


def test_rows_of_it_can_be_tested() -> None:
    rules = RulesTest.of_text(config().replace("{query:", "{auto_subscribe: true, query:"))
    rules.insert("totals", {"account_id": "ann", "n": 3}, {"account_id": "bob", "n": 4})
    (row,) = rules.client("ann").table("totals")
    assert row["n"] == 3


def test_edited_query_is_a_difference() -> None:
    found = compare(plan(), plan(query="SELECT 1 AS account_id"))
    assert found.computed == (("totals", ChangeKind.CHANGED),)
    assert not found.same
    assert {side.change for side in found.definitions} == {ChangeKind.UNCHANGED}
    assert compare(plan(), plan()).same


def suggestion(query: str) -> str:
    config = f"config: {{edition: 3}}\nwith: {{mine: SELECT id FROM m}}\nstreams: {{My-s: {{query: {query!r}}}}}"
    with pytest.raises(SyncConfigError) as caught:
        compile_config(config)
    return "\n".join(error.suggestion for error in caught.value.errors)


OFFERED = {
    "SELECT account_id, count(*) AS n FROM orders WHERE paid AND account_id = auth.user_id() GROUP BY account_id": (
        "SELECT account_id, COUNT(*) AS n FROM orders WHERE paid GROUP BY account_id",
        "key: [account_id]",
        "SELECT * FROM my_s_table WHERE account_id = auth.user_id()",
    ),
    "SELECT sum(o.total) AS total FROM orders o WHERE o.owner = auth.user_id()": (
        "SELECT o.owner, SUM(o.total) AS total FROM orders AS o GROUP BY o.owner",
        "key: [owner]",
        "SELECT * FROM my_s_table WHERE owner = auth.user_id()",
    ),
    "SELECT * FROM t ORDER BY day LIMIT 10": ("SELECT * FROM t ORDER BY day LIMIT 10", "key: [id]"),
    "SELECT id FROM a UNION SELECT id FROM b": ("SELECT id FROM a UNION SELECT id FROM b", "key: [id]"),
    "SELECT a.id, b.y FROM a FULL JOIN b ON a.x = b.x": (
        "SELECT a.id, b.y FROM a FULL JOIN b ON a.x = b.x",
        "key: [id]",
    ),
    "SELECT a.id FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE b.x > a.x)": (
        "SELECT a.id FROM a WHERE NOT EXISTS(SELECT 1 FROM b WHERE b.x > a.x)",
        "key: [id]",
    ),
    "SELECT id, to_char(day, 'YYYY') AS y FROM t": ("TO_CHAR(day, 'YYYY')", "SELECT * FROM my_s_table`"),
}


@pytest.mark.parametrize("query", OFFERED)
def test_refused_query_is_offered_as_computed_table(query: str) -> None:
    said = suggestion(query)
    assert said.count("have the source compute it") == 1
    for part in OFFERED[query]:
        assert part in said


@pytest.mark.parametrize(
    "query",
    [
        "SELECT count(*) AS n FROM t WHERE id IN mine",
        "SELECT count(*) AS n FROM t WHERE auth.user_id() = owner OR public",
        "SELECT substrr(name, 1) AS id FROM t",
    ],
)
def test_no_table_is_offered_that_would_not_do(query: str) -> None:
    assert "have the source compute it" not in suggestion(query)


SPARK = "SELECT account_id, n FROM parquet.`/lake`"


def spark(more: str = "", kind: str = "spark") -> str:
    return config(more).replace(f"query: {QUERY}", f"{kind}: {SPARK}")


def test_table_of_spark_is_read() -> None:
    (table,) = compile_config(spark()).plan.computed
    assert table == ComputedTable(
        "default", "totals", SPARK, ("account_id",), Refresh(every=300.0, timeout=600.0), spark=True
    )
    (table,) = compile_config(spark("    refresh: {every: 1h, least: 0s}\n")).plan.computed
    assert table.refresh == Refresh(every=3600.0, least=0.0, timeout=600.0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("    query: SELECT 1\n", "HW_R002 table `totals` has both `query` and `spark`"),
        ("    refresh: {after: auto}\n", "HW_R002 table `totals` is Spark's"),
        ("    refresh: {every: 1h, after: [orders]}\n", "HW_R002 table `totals` is Spark's"),
    ],
)
def test_mistake_of_table_of_spark_is_named(more: str, said: str) -> None:
    assert error(spark(more)).startswith(said)


def test_query_that_moves_to_spark_is_a_change() -> None:
    before, after = compile_config(spark(kind="query")).plan, compile_config(spark()).plan
    assert dict(compare(before, after).computed) == {"totals": ChangeKind.CHANGED}
