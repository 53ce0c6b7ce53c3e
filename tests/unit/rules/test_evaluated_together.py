"""Rules over one table are evaluated together; each gives what it gives by itself, and fails by itself."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.rows import bind_table
from headwater_rules.plan import Value
from headwater_rules.results import RowResult
from tests.support.examples import examples

COLUMNS = ("id", "owner", "team", "tags", "level")

CONDITIONS = (
    "owner = 'x'",
    "level > 2",
    "level > 2 AND NOT team = 'a'",
    "tags ->> 'a' = 'x'",  # fails for what is no JSON
    "json_array_length(tags) > 1",  # the same
    "level",
    "owner IS NULL OR team IN ('a', 'b')",
    "length(owner) + 1 = level",
)
SELECTED = ("*", "id, upper(team) AS team", "id, tags ->> 'a' AS a, level + 1 AS next", "id, owner || team AS both")

_QUERIES = st.one_of(
    st.builds(
        "SELECT {} FROM things WHERE team = subscription.parameter('t') AND ({})".format,
        st.sampled_from(SELECTED),
        st.sampled_from(CONDITIONS),
    ),
    st.builds("SELECT {} FROM things".format, st.sampled_from(SELECTED)),
    st.builds(
        "SELECT * FROM others WHERE team IN (SELECT team FROM things WHERE owner = auth.user_id() AND ({}))".format,
        st.sampled_from(CONDITIONS),
    ),
    st.builds(
        "SELECT * FROM others WHERE team IN (SELECT {} FROM things WHERE owner = auth.user_id())".format,
        st.sampled_from(["upper(team)", "tags ->> 'a'", "level + 1"]),
    ),
    st.builds(
        "SELECT things.* FROM things, json_each(things.tags) AS t WHERE t.value = auth.user_id() AND ({})".format,
        st.sampled_from(["level > 2", "owner = 'x'"]),
    ),
)
_TEXTS = st.sampled_from([None, "", "a", "b", "x", "é"])
_TAGS = st.sampled_from([None, "[]", '["x", "y", "x"]', '{"a": "x"}', "no JSON", "[1,", 7, b"\0"])
_ROWS = st.tuples(st.just("1"), _TEXTS, _TEXTS, _TAGS, st.sampled_from([None, 0, 1, 3, 2.5, 2**62, "3", "text"]))


def evaluated(queries: Sequence[str], row: tuple[Value, ...]) -> RowResult:
    """The result of a config with a stream for each query."""
    streams = "".join(
        f'  s{number}: {{accept_potentially_dangerous_queries: true, query: "{query}"}}\n'
        for number, query in enumerate(queries)
    )
    plan = compile_config(f"config: {{edition: 3}}\nstreams:\n{streams}").plan
    program = bind_table(plan, "default", "public", "things", COLUMNS)
    assert program is not None
    return program.evaluate(row, "row")


def reason(error: str) -> str:
    """Of an error, what is wrong without what it is wrong in, which is named otherwise among others."""
    return error.partition(": ")[2]


@settings(max_examples=examples(150))
@given(st.lists(_QUERIES, min_size=1, max_size=8), _ROWS)
def test_together_and_alone(queries: list[str], row: tuple[Value, ...]) -> None:
    together = evaluated(queries, row)
    alone = [evaluated([query], row) for query in queries]
    assert {put[2:] for put in together.puts} == {put[2:] for result in alone for put in result.puts}
    assert {each.output for each in together.lookups} == {each.output for result in alone for each in result.lookups}
    assert {reason(error) for error in together.errors} == {
        reason(error) for result in alone for error in result.errors
    }
