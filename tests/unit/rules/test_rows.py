"""What single rows give: values, filters, ids, names, and errors that stay with their row."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_rules.evaluate.rows import bind_table
from headwater_rules.plan import Value
from headwater_rules.results import RowResult
from tests.support.examples import examples
from tests.unit.rules.rules_store import bound, plan_of

COLUMNS = ["id", "a", "b"]


def evaluate(query: str, row: Sequence[Value], *, columns: Sequence[str] = COLUMNS, table: str = "t") -> RowResult:
    return bound(plan_of(query), table, columns).evaluate(row, "row-1")


@pytest.mark.parametrize(
    ("a", "passes"),
    [(1, True), (0, False), (0.5, True), (None, False), ("1", True), ("0.9", False), ("x", False), (b"1", False)],
)
def test_bare_column(a: Value, passes: bool) -> None:
    assert bool(evaluate("SELECT * FROM t WHERE a", ("1", a, None)).puts) is passes


def test_kinds_of_values() -> None:
    result = evaluate(
        "SELECT * FROM t", ["1", 314.0, None, 2**63 - 1, float("inf"), b"x", "é\n"], columns=[*COLUMNS, *"cdef"]
    )
    assert result.puts[0].data == '{"id":"1","a":314.0,"b":null,"c":9223372036854775807,"d":null,"f":"é\\n"}'


@pytest.mark.parametrize(
    ("query", "id_", "expected"),
    [
        ("SELECT * FROM t", "x", "x"),
        ("SELECT * FROM t", 7, "7"),
        ("SELECT * FROM t", 7.0, "7"),
        ("SELECT * FROM t", None, "row-1"),
        ("SELECT a FROM t", "x", "row-1"),
        ("SELECT a AS id, b FROM t", "x", "A"),
        ("SELECT row_id() AS id FROM t", "x", "row-1"),
    ],
)
def test_object_id(query: str, id_: Value, expected: Value) -> None:
    assert evaluate(query, (id_, "A", "B")).puts[0].id == expected


@pytest.mark.parametrize(
    ("a", "suffix"),
    [
        ("u1", '["u1"]'), ('q"é\n', '["q\\"é\\n"]'), (1, "[1]"), (1.0, "[1]"), (-0.0, "[0]"), (1.5, "[1.5]"),
        (9007199254740993, "[9007199254740993]"), (None, None), (b"u1", None), (float("inf"), None),
    ],
)  # fmt: skip
def test_bucket_suffix(a: Value, suffix: str | None) -> None:
    puts = evaluate("SELECT * FROM t WHERE a = auth.user_id()", ("1", a, None)).puts
    assert [put.bucket.partition("[")[1] + put.bucket.partition("[")[2] for put in puts] == ([suffix] if suffix else [])


def test_equal_elements() -> None:
    puts = evaluate("SELECT id FROM t WHERE auth.user_id() IN a", ("1", '["x","x",null,2]', None)).puts
    assert [put.bucket[put.bucket.index("[") :] for put in puts] == ['["x"]', "[2]"]


def test_failing_expression() -> None:
    plan = plan_of("SELECT * FROM t WHERE a = auth.user_id()", "SELECT id, b -> 'x' AS x FROM t")
    program = bound(plan, "t", COLUMNS)
    result = program.evaluate(("1", "u1", "{secret"), "row-1")
    assert [put.definition for put in result.puts] == [0]
    assert result.errors == [f"{plan.buckets[1].name}: malformed JSON"]


def test_missing_column_selected() -> None:
    result = evaluate("SELECT id, missing FROM t WHERE b IS NULL", ("1", "u1", None))
    assert result.puts[0].data == '{"id":"1","missing":null}'


@pytest.mark.parametrize(
    "condition",
    [
        "gone IS NULL", "gone <> 'x'", "NOT gone", "ifnull(gone, 0) = 0", "gone = auth.user_id()", "b IS NULL OR gone",
        "coalesce(gone, former) IS NULL", "coalesce(gone, a) = 'u1' AND gone IS NULL",
        "auth.user_id() IN gone", "'coalesce(gone, a)' <> gone", "coalesce(gone, b) IS NULL", "NOT ifnull(gone, b)",
        "coalesce(gone, a) <> 'x'", "coalesce(gone, t.row_id()) = auth.user_id()",
    ],
)  # fmt: skip
def test_missing_column_in_condition(condition: str) -> None:
    plan = plan_of(f"SELECT * FROM t WHERE {condition}", "SELECT id FROM t WHERE a = auth.user_id()")
    result = bound(plan, "t", COLUMNS).evaluate(("1", "u1", None), "row-1")
    assert [put.definition for put in result.puts if put.definition == 0] == []
    assert [put.definition for put in result.puts][-1] == len(plan.buckets) - 1


def test_missing_column_in_lookup() -> None:
    plan = plan_of("SELECT * FROM t WHERE a IN (SELECT id FROM t AS o WHERE o.b = auth.user_id() AND o.gone IS NULL)")
    assert bound(plan, "t", COLUMNS).evaluate(("1", "u1", "u2"), "row-1").lookups == []


def test_renamed_column() -> None:
    result = evaluate("SELECT id FROM t WHERE coalesce(gone, a) = auth.user_id()", ("1", "u1", None))
    assert [put.bucket.partition("[")[2] for put in result.puts] == ['"u1"]']


def test_wildcard() -> None:
    query = 'SELECT id, t.table_suffix() AS suffix, t.table_name() AS name, t.schema() AS schema FROM "part_%" AS t'
    plan = plan_of(query)
    program = bound(plan, "part_2024", ["id"])
    assert json.loads(program.evaluate(("1",), "r").puts[0].data) == {
        "id": "1", "suffix": "2024", "name": "part_2024", "schema": "public",
    }  # fmt: skip
    assert bind_table(plan, "default", "public", "other", ["id"]) is None
    assert bind_table(plan, "second", "public", "part_2024", ["id"]) is None


def test_wildcard_table_name() -> None:
    plan = plan_of('SELECT * FROM "part_%"')
    assert bound(plan, "part_1", ["id"]).evaluate(("1",), "r").puts[0].table == "part_1"


def test_alias() -> None:
    assert evaluate("SELECT * FROM t AS things", ("1", None, None)).puts[0].table == "things"


def test_case_of_names() -> None:
    result = evaluate('SELECT ID, "Title" FROM "T"', ("1", "x"), columns=["id", "Title"], table="T")
    assert result.puts[0].data == '{"id":"1","Title":"x"}'


def test_program_columns() -> None:
    plan = plan_of(
        "SELECT id, a FROM t WHERE b = auth.user_id()",
        "SELECT * FROM other WHERE k IN (SELECT a FROM t WHERE c = auth.user_id())",
    )
    program = bound(plan, "t", [*COLUMNS, "c", "unused"])
    assert program.definitions == (0,)
    assert program.has_lookups
    assert program.needs_columns == frozenset({"id", "a", "b", "c"})
    assert bound(plan, "other", ["k"]).needs_columns is None


def test_lookup_entries() -> None:
    plan = plan_of("SELECT * FROM x WHERE k IN (SELECT a FROM t WHERE b = auth.user_id())")
    program = bound(plan, "t", COLUMNS)
    name = plan.lookups[0].name
    assert program.evaluate(("1", 5, "u1"), "r").lookups == [(f'{name}["u1"]', "[5]")]
    assert program.evaluate(("1", None, "u1"), "r").lookups == []
    assert program.evaluate(("1", 5, b"u1"), "r").lookups == []


def test_other_thread() -> None:
    program = bound(plan_of("SELECT id, upper(a) AS a FROM t"), "t", COLUMNS)
    found: list[RowResult] = []
    thread = threading.Thread(target=lambda: found.append(program.evaluate(("1", "x", None), "r")))
    thread.start()
    thread.join()
    assert found == [program.evaluate(("1", "x", None), "r")]


anything = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.binary(max_size=4),
)


@settings(deadline=None, max_examples=examples(300))
@given(anything, anything, anything)
def test_short_and_long_path_give_the_same(id_: Value, key: Value, other: Value) -> None:
    columns, row = ["id", "k", "other"], (id_, key, other)
    short = bound(plan_of("SELECT *, row_id() AS r FROM t WHERE k = auth.user_id()"), "t", columns)
    long = bound(
        plan_of("SELECT CASE WHEN 1 THEN id END AS id, CASE WHEN 1 THEN k END AS k,"
                " CASE WHEN 1 THEN other END AS other, CASE WHEN 1 THEN row_id() END AS r FROM t"
                " WHERE CASE WHEN 1 THEN k END = auth.user_id() AND (k IS NULL OR k IS NOT NULL)"),
        "t", columns,
    )  # fmt: skip
    quick, slow = short.evaluate(row, "row-1"), long.evaluate(row, "row-1")
    assert quick.errors == slow.errors == []
    assert [(p.bucket.partition("[")[2], p.table, p.id, p.data) for p in quick.puts] == [
        (p.bucket.partition("[")[2], p.table, p.id, p.data) for p in slow.puts
    ]
