"""SQL is compiled as it stands in the file, whatever YAML makes of its lines."""

from __future__ import annotations

import json
from textwrap import indent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode, SyncConfigError
from headwater_rules.plan import SyncPlan
from tests.unit.rules.rules_store import errors_of, place_of

HEAD = "config: {edition: 3}\nstreams:\n  s:\n    query: "
OWN = "SELECT * FROM todos WHERE owner_id = auth.user_id()"
STYLES = ["|", "|-", "|2+", ">", ">-", ">+", "plain", "'", '"', "tagged", "anchored"]


def plan_of(text: str) -> SyncPlan:
    return compile_config(text).plan


def config(sql: str, style: str, end: str = "\n") -> str:
    """A stream with the lines of `sql` in a style of YAML."""
    match style:
        case "plain":
            value = sql.replace("\n", "\n        ")
        case "'":
            value = "'" + sql.replace("'", "''").replace("\n", "\n      ") + "'"
        case '"':
            value = '"' + json.dumps(sql)[1:-1].replace("\\n", "\n      ") + '"'
        case "tagged" | "anchored":
            head = "!!str" if style == "tagged" else "&own"
            value = f"{head} >- # folded\n" + indent(sql, " " * 6)
        case _:
            value = f"{style}\n" + indent(sql, " " * 6)
    return f"{HEAD}{value}\n    auto_subscribe: true\n".replace("\n", end)


OWN_PLAN = plan_of(config(OWN, "|"))


# comments


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM todos -- only own\nWHERE owner_id = auth.user_id()",
        "-- only own\nSELECT *\nFROM todos --\nWHERE -- a 'quoted' /* word\n  owner_id = auth.user_id() -- end",
        "SELECT * FROM todos -- only own\n\n\n  WHERE owner_id = auth.user_id()",
        "SELECT * FROM todos /* only\n-- own */ WHERE owner_id\n/* a /* b */\n*/ = auth.user_id()",
    ],
)
def test_comment(sql: str, style: str, end: str) -> None:
    assert plan_of(config(sql, style, end)) == OWN_PLAN


@pytest.mark.parametrize("key", ["query: {}", "queries:\n    - {}", "queries: [{}]", '"query": {}'])
def test_comment_in_lists(key: str) -> None:
    sql = "SELECT * FROM todos -- only own\n        WHERE owner_id = auth.user_id()"
    plan = plan_of(f"config: {{edition: 3}}\nstreams:\n  s:\n    auto_subscribe: true\n    {key.format(sql)}\n")
    assert plan == OWN_PLAN


def test_comment_in_with_queries() -> None:
    def with_query(sql: str) -> SyncPlan:
        return plan_of(
            "config: {edition: 3}\nwith:\n  own: "
            + sql
            + "\nstreams:\n  s:\n    query: SELECT * FROM todos WHERE list_id IN own\n"
        )

    assert with_query(
        "SELECT id FROM lists -- only own\n    WHERE owner_id = auth.user_id()"
    ) == with_query("SELECT id FROM lists WHERE owner_id = auth.user_id()")  # fmt: skip


@pytest.mark.parametrize("style", ["", ">\n       "])
def test_comment_in_bucket_definitions(style: str) -> None:
    def definition(parameters: str, data: str) -> SyncPlan:
        return plan_of(
            f"bucket_definitions:\n  b:\n    parameters: {style}{parameters}\n    data:\n      - {style}{data}\n"
        )

    assert definition(
        "SELECT id AS list_id FROM lists -- own\n        WHERE owner_id = request.user_id()",
        "SELECT * FROM todos WHERE list_id = bucket.list_id -- open\n        AND done = 0",
    ) == definition(
        "SELECT id AS list_id FROM lists WHERE owner_id = request.user_id()",
        "SELECT * FROM todos WHERE list_id = bucket.list_id AND done = 0",
    )


def test_escaped_line_break() -> None:
    for written in (r"todos -- own\n WHERE", r"todos -- own\r\n WHERE", r"todos \/* own *\/ WHERE"):
        assert (
            plan_of(config(OWN, "|").replace("|\n      " + OWN, f'"{OWN.replace("todos WHERE", written)}"')) == OWN_PLAN
        )


PARTS = [
    "SELECT *", "FROM todos", "-- only own", "/* a", "b */", "WHERE owner_id = auth.user_id()",
    "AND a = 'x--y'", "OR b = 1",
]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from([" ", "\n", "\n\n", "\n  "])), max_size=8),
       st.sampled_from(STYLES))  # fmt: skip
def test_styles_are_equal(parts: list[tuple[str, str]], style: str) -> None:
    sql = ("SELECT * FROM todos " + "".join(part + after for part, after in parts)).strip()
    found: list[SyncPlan | None] = []
    for each in ("|", style):
        try:
            found.append(compile_config(config(sql, each)).plan)
        except SyncConfigError:
            found.append(None)
    assert found[0] == found[1]


# what YAML cuts off or changes


@pytest.mark.parametrize(
    ("value", "marked"),
    [
        ("SELECT * FROM todos # WHERE owner_id = auth.user_id()", "# WHERE owner_id = auth.user_id()"),
        ("SELECT * FROM todos WHERE color = 'red #1' AND owner_id = 1", "#1' AND owner_id = 1"),
        ("SELECT *\n      FROM todos # everybody", "# everybody"),
        ("!!str SELECT * FROM todos   # everybody", "# everybody"),
        ("&all SELECT * FROM todos # everybody\n  t:\n    query: *all", "# everybody"),
    ],
)  # fmt: skip
def test_cut_query(value: str, marked: str) -> None:
    error = errors_of(f"{HEAD}{value}\n").errors[0]
    assert error.code is RuleCode.CHANGED
    assert place_of(error).text == marked
    assert "query: |" in error.suggestion


@pytest.mark.parametrize(
    "definition",
    [
        "parameters: SELECT id AS x FROM lists # WHERE a = 1\n    data:\n      - SELECT * FROM t WHERE a = bucket.x",
        "data:\n      - SELECT * FROM t # WHERE a = 1",
        "data: [SELECT * FROM t # WHERE a = 1\n      ]",
    ],
)  # fmt: skip
def test_cut_query_in_bucket_definitions(definition: str) -> None:
    assert errors_of(f"bucket_definitions:\n  b:\n    {definition}\n").errors[0].code is RuleCode.CHANGED


def test_cut_query_under_with_and_events() -> None:
    text = (
        "config: {edition: 3}\nwith:\n  own: SELECT id FROM lists # WHERE owner_id = auth.user_id()\n"
        "event_definitions:\n  e:\n    payloads:\n      - SELECT * FROM t # x\n"
        f"streams:\n  s:\n    query: {OWN}\n"
    )
    assert [error.code for error in errors_of(text).errors] == [RuleCode.CHANGED, RuleCode.CHANGED]


@pytest.mark.parametrize(
    "value",
    [
        f"{OWN}\n    # everybody: SELECT * FROM todos\n",
        f"'{OWN}' # only own\n",
        f'"{OWN}" # only own\n',
        f"| # only own\n      {OWN}\n    # the end\n",
        f"# only own\n      {OWN}\n",
    ],
)
def test_yaml_comments(value: str) -> None:
    assert plan_of(f"{HEAD}{value}    auto_subscribe: true\n") == OWN_PLAN


@pytest.mark.parametrize(
    "value",
    [
        "SELECT * FROM todos WHERE a = 'x: y'",
        "\n      SELECT * FROM todos WHERE a = 'x: y'",
        "SELECT * FROM todos\n      # only own\n      WHERE owner_id = auth.user_id()",
        "|\n        SELECT * FROM todos\n      # only own\n        WHERE owner_id = auth.user_id()",
        ">\n        SELECT * FROM todos\n      # only own\n        WHERE owner_id = auth.user_id()",
        "SELECT * FROM todos\tWHERE owner_id = auth.user_id()",
        "SELECT * FROM todos\t# WHERE owner_id = auth.user_id()",
        "&a SELECT * FROM todos\n  t:\n    query: *a WHERE owner_id = auth.user_id()",
        r'"SELECT * FROM todos -- own\u000aWHERE owner_id = auth.user_id()"',
        r'"SELECT * FROM todos \x2d\x2d WHERE owner_id = auth.user_id()"',
        r'"SELECT * FROM todos \u002f* WHERE owner_id = auth.user_id() */"',
        r'"SELECT * FROM todos WHERE owner_id = auth.user_id() AND a = \x27\x27"',
        '"SELECT * FROM todos -- own\\\n        WHERE owner_id = auth.user_id()"',
        r'"SELECT * FROM todos \0 WHERE a = 1"',
        r'"SELECT * FROM todos -- own \r WHERE a = 1"',
        ">\n      SELECT * FROM todos WHERE a = 'x\n      y'",
        "SELECT * FROM todos WHERE a = 'x\n      y'",
        'SELECT * FROM todos WHERE "a\n      b" = 1',
    ],
)
def test_changed_sql(value: str) -> None:
    error = errors_of(f"{HEAD}{value}\n").errors[0]
    assert error.code in {RuleCode.YAML, RuleCode.CHANGED}
    assert "query: |" in error.suggestion


@pytest.mark.parametrize("character", ["\r", "\x85", "\u2028", "\u2029", "\u202e", "\u2066"])
def test_hidden_line_ends(character: str) -> None:
    for style in ("|", "'"):
        text = config(f"{OWN} -- {character} OR true", style)
        assert errors_of(text).errors[0].code in {RuleCode.YAML, RuleCode.CHANGED}


@pytest.mark.parametrize(
    "condition",
    [
        "a != \u2018secret\u2019", "a != \u201csecret\u201d", "a\u200b != 1", "a \ufeff!= 1", "a\u2060 != 1",
        "a\u00ad != 1", "a = \u2212 1",
    ],
)  # fmt: skip
def test_lookalikes(condition: str) -> None:
    (error,) = errors_of(config(f"{OWN} AND {condition}", "|")).errors
    assert error.code is RuleCode.SQL_SYNTAX
    assert "U+" in error.message


def test_letters_of_all_scripts() -> None:
    config_text = config("SELECT gr\u00f6\u00dfe, \u540d\u524d\u00a0FROM todos WHERE \"a\u200b\" = '\u2018\u200d'", "|")
    assert plan_of(config_text).buckets[0].sources[0].filters[0].inputs == ("a\u200b",)


def test_template_comments() -> None:
    text = config("SELECT * FROM todos {# WHERE owner_id = auth.user_id() #}", "|")
    assert errors_of(text).errors[0].code is RuleCode.SQL_SYNTAX


def test_merge_keys() -> None:
    for text in (
        "config: {edition: 3}\nstreams:\n  <<: {query: SELECT * FROM todos}\n",
        f"config: {{edition: 3}}\nstreams:\n  s:\n    query: {OWN}\n    <<: {{query: SELECT * FROM todos}}\n",
        f"config: {{edition: 3}}\nwith: {{<<: SELECT id FROM todos}}\nstreams:\n  s: {{query: {OWN}}}\n",
    ):
        (error,) = errors_of(text).errors
        assert (error.code, error.message) == (RuleCode.STRUCTURE, "`<<` is not supported")


def test_text_over_lines() -> None:
    plan = plan_of(config("SELECT * FROM todos WHERE a = 'x\n  y'", "|"))
    assert "'x\n  y'" in plan.buckets[0].sources[0].filters[0].sql


# places


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("style", STYLES)
def test_places(style: str, end: str) -> None:
    text = config("SELECT * -- nonsense(id)\nFROM todos\n  WHERE a = 'it''s' -- x\n AND nonsense(id)", style, end)
    (error,) = errors_of(text).errors
    assert (place_of(error).text, place_of(error).start) == ("nonsense(id)", text.rindex("nonsense(id)"))
    assert place_of(error).line == text[: place_of(error).start].count("\n") + 1
