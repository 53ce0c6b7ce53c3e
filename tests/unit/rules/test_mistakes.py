"""Typical mistakes in rules: each is found at its place, the message says what is wrong and what to write instead, and
where that is certain, applying the edit mends it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from headwater_rules.compiler.compile import compile_config, findings_in
from headwater_rules.describe.explain import explain, explanation_lines
from headwater_rules.errors import RuleCode, RuleError
from headwater_rules.schema import SourceColumn, SourceSchema, SourceTable, ValueKind

STREAM = """config:
  edition: 3
streams:
  mine:
    auto_subscribe: true
    with:
      my_projects: SELECT id FROM projects WHERE owner_id = auth.user_id()
    query: |
      {}
"""
PLAIN = STREAM.replace("    with:\n      my_projects: SELECT id FROM projects WHERE owner_id = auth.user_id()\n", "")
BUCKETS = """bucket_definitions:
  mine:
    parameters: {}
    data:
      - {}
"""
TASKS = "SELECT * FROM tasks WHERE "
MINE = " AND assignee_id = auth.user_id()"


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is written, the code, the text that is underlined, words of the message or suggestion, and the replacement
    that the edit makes; None where no edit is certain."""

    name: str
    text: str
    code: RuleCode
    place: str
    words: tuple[str, ...]
    fix: str | None = None


def sql(
    name: str, query: str, code: RuleCode, place: str, *words: str, fix: str | None = None, form: str = PLAIN
) -> Mistake:
    return Mistake(name, form.format(query), code, place, words, fix)


NAME, CALL, SYNTAX = RuleCode.UNKNOWN_NAME, RuleCode.UNKNOWN_FUNCTION, RuleCode.SQL_SYNTAX
REFUSED, MISREAD, STRUCTURE = RuleCode.UNSUPPORTED, RuleCode.MISREAD, RuleCode.STRUCTURE

MISTAKES = [
    # values of the request
    sql("user id without call", TASKS + "assignee_id = auth.user_id", NAME, "auth.user_id", "calls",
        fix="auth.user_id()"),
    sql("claim as a column", TASKS + "assignee_id = auth.org_id", NAME, "auth.org_id", fix="auth.parameter('org_id')"),
    sql("subscription as a table", TASKS + "id = subscription.id", NAME, "subscription.id",
        fix="subscription.parameter('id')"),
    sql("connection as a table", TASKS + "id = connection.id", NAME, "connection.id", fix="connection.parameter('id')"),
    sql("bucket in a stream", TASKS + "assignee_id = bucket.user_id", NAME, "bucket.user_id", "bucket definition",
        fix="auth.user_id()"),
    sql("bucket parameter in a stream", TASKS + "id = bucket.list_id", NAME, "bucket.list_id",
        "subscription.parameter('list_id')"),
    sql("token parameters in a stream", TASKS + "assignee_id = token_parameters.user_id", NAME,
        "token_parameters.user_id", fix="auth.user_id()"),
    sql("other token parameters", TASKS + "id = token_parameters.org", NAME, "token_parameters.org",
        fix="auth.parameters() -> 'parameters' ->> 'org'"),
    sql("user parameters in a stream", TASKS + "id = user_parameters.org", NAME, "user_parameters.org",
        fix="connection.parameter('org')"),
    sql("request in a stream", TASKS + "assignee_id = request.user_id()", CALL, "request.user_id()",
        fix="auth.user_id()"),
    sql("request token in a stream", TASKS + "id = request.jwt() ->> 'org'", CALL, "request.jwt()",
        fix="auth.parameters()"),
    sql("request parameters in a stream", TASKS + "id = request.parameters() ->> 'x'" + MINE, CALL,
        "request.parameters()", fix="connection.parameters()"),
    sql("uid of Supabase", TASKS + "assignee_id = auth.uid()", CALL, "auth.uid()", fix="auth.user_id()"),
    sql("uid called with blanks", TASKS + "assignee_id = auth.uid ( )", CALL, "auth.uid", fix="auth.user_id()"),
    sql("jwt of Supabase", TASKS + "assignee_id = auth.jwt() ->> 'org'", CALL, "auth.jwt()", fix="auth.parameters()"),
    sql("user id without auth", TASKS + "assignee_id = user_id()", CALL, "user_id()", "auth.user_id()"),
    sql("parameters with a name", TASKS + "id = auth.parameters('org')", CALL, "auth.parameters('org')",
        fix="auth.parameter('org')"),
    sql("field of the parameters", TASKS + "id = auth.parameters().org", REFUSED, "auth.parameters().org",
        fix="auth.parameter('org')"),
    sql("parameter in double quotes", TASKS + 'id = auth.parameter("org")', REFUSED, 'auth.parameter("org")',
        "single quotes", fix="'org'"),
    sql("parameter without quotes", TASKS + "id = auth.parameter(org)", REFUSED, "auth.parameter(org)", fix="'org'"),
    sql("user of the database", TASKS + "assignee_id = current_user", MISREAD, "current_user", fix="auth.user_id()"),
    sql("call in quotes", TASKS + "assignee_id = 'auth.user_id()'", MISREAD, "'auth.user_id()'", "without the quotes",
        fix="auth.user_id()"),
    Mistake("call missing in a parameter query",
            BUCKETS.format("SELECT request.user_id AS u", TASKS + "assignee_id = bucket.u"),
            NAME, "request.user_id", ("calls",), "request.user_id()"),
    Mistake("auth in a parameter query",
            BUCKETS.format("SELECT auth.user_id() AS u", TASKS + "assignee_id = bucket.u"),
            CALL, "auth.user_id()", (), "request.user_id()"),
    Mistake("token in a data query",
            BUCKETS.format("SELECT request.user_id() AS u", TASKS + "assignee_id = token_parameters.user_id"),
            NAME, "token_parameters.user_id", ("parameters", "bucket.…")),
    # placeholders, and quotes of other databases
    sql("named placeholder", TASKS + "assignee_id = :user_id", SYNTAX, ":user_id", "placeholder", "auth.user_id()"),
    sql("numbered placeholder", TASKS + "assignee_id = $1", SYNTAX, "$1", "placeholder", "auth.user_id()"),
    sql("question mark", TASKS + "assignee_id = ?", SYNTAX, "?", "placeholder", "auth.user_id()"),
    sql("at sign", TASKS + "assignee_id = @user", SYNTAX, "@user", "placeholder", "subscription.parameter('user')"),
    sql("template", TASKS + "assignee_id = ${user}", SYNTAX, "${user}", "template"),
    sql("backticks", TASKS + "`title` = 'a'" + MINE, SYNTAX, "`title`", "backticks", fix="title"),
    sql("text in double quotes", TASKS + 'title = "open"' + MINE, MISREAD, '"open"', "single quotes", fix="'open'"),
    sql("texts in double quotes", TASKS + "title IN ('a', \"open\")" + MINE, MISREAD, '"open"', fix="'open'"),
    # comparisons and operators
    sql("equal to null", TASKS + "title = NULL" + MINE, MISREAD, "title = NULL", "never true", fix=" IS NULL"),
    sql("unequal to null", TASKS + "title != NULL" + MINE, MISREAD, "title != NULL", "always true", fix=" IS NOT NULL"),
    sql("is a text", TASKS + "title IS 'open'" + MINE, REFUSED, "title IS 'open'", fix="title = 'open'"),
    sql("is not a text", TASKS + "title IS NOT 'open'" + MINE, REFUSED, "title IS NOT 'open'", fix="title != 'open'"),
    sql("is the user", TASKS + "assignee_id IS auth.user_id()", REFUSED, "assignee_id IS auth.user_id()",
        fix="assignee_id = auth.user_id()"),
    sql("plus for texts", "SELECT id, title + '!' AS t FROM tasks WHERE assignee_id = auth.user_id()", MISREAD,
        "title + '!'", "counts as 0", "||", fix="||"),
    sql("list in one text", TASKS + "title IN 'a,b'" + MINE, MISREAD, "'a,b'", "JSON array", fix="('a', 'b')"),
    *(sql(f"now in {call}", f"{TASKS}unixepoch(due) < {call}{MINE}", MISREAD, call, "is null", "`now()`") for call in (
        "unixepoch('now')", "julianday(' NOW ')", "strftime('%s', 'now', '+1 day')", "unixepoch('subsec')",
    )),
    sql("a word for now", TASKS + "due < 'today'" + MINE, MISREAD, "'today'", "as a text", "`current_date`"),
    sql("a word for the end of time", TASKS + "'Infinity' <= due" + MINE, MISREAD, "'Infinity'", "as a text", "9999"),
    sql("between words", TASKS + "due BETWEEN '2024-01-01' AND 'now'" + MINE, MISREAD, "'now'", "as a text"),
    sql("and of other languages", TASKS + "assignee_id = auth.user_id() && title = 'a'", REFUSED,
        "auth.user_id() && title", "AND"),
    sql("cast to uuid", TASKS + "assignee_id = auth.user_id()::uuid", REFUSED, "auth.user_id()", "a uuid is a text",
        fix="auth.user_id()"),
    # tables, columns and CTEs
    sql("ambiguous column", "SELECT tasks.* FROM tasks JOIN projects ON projects.id = tasks.project_id"
        " WHERE owner_id = auth.user_id()", NAME, "owner_id", "tasks.owner_id", "projects.owner_id"),
    sql("table beside its alias", "SELECT * FROM tasks t WHERE tasks.assignee_id = auth.user_id()", NAME,
        "tasks.assignee_id", fix="t"),
    sql("mistyped CTE", TASKS + "project_id IN my_project", MISREAD, "my_project", fix="my_projects", form=STREAM),
    sql("mistyped CTE in a subquery", TASKS + "project_id IN (SELECT id FROM my_project)", MISREAD, "my_project",
        fix="my_projects", form=STREAM),
    sql("or over a joined table", "SELECT tasks.* FROM tasks JOIN projects ON projects.id = tasks.project_id"
        " WHERE projects.owner_id = auth.user_id() OR tasks.assignee_id = auth.user_id()", RuleCode.EVERY_ROW,
        "SELECT tasks.* FROM tasks JOIN projects ON projects.id = tasks.project_id"
        " WHERE projects.owner_id = auth.user_id() OR tasks.assignee_id = auth.user_id()", "all rows of", "queries"),
    # syntax
    sql("only a table", "tasks", SYNTAX, "tasks", "SELECT * FROM tasks", fix="SELECT * FROM tasks"),
    sql("missing SELECT", "* FROM tasks WHERE assignee_id = auth.user_id()", SYNTAX, "*", "`SELECT`", fix="SELECT *"),
    sql("mistyped SELECT", "SELEKT * FROM tasks WHERE assignee_id = auth.user_id()", SYNTAX, "SELEKT", fix="SELECT"),
    sql("mistyped WHERE", "SELECT * FROM tasks WERE assignee_id = auth.user_id()", SYNTAX, "WERE", fix="WHERE"),
    sql("mistyped FROM", "SELECT * FORM tasks WHERE assignee_id = auth.user_id()", SYNTAX, "FORM", fix="FROM"),
    sql("a statement that writes", "DELETE FROM tasks", REFUSED, "DELETE", "SELECT", "rules only read"),
    sql("unfinished condition", TASKS + "assignee_id = auth.user_id() AND", SYNTAX, "AND", "ends after `AND`"),
    sql("bracket not closed", TASKS + "(assignee_id = auth.user_id()", SYNTAX, "(", "not closed"),
    sql("bracket too many", TASKS + "assignee_id = auth.user_id())", SYNTAX, ")", "closes no bracket"),
    # YAML
    Mistake("hash in a text", PLAIN.format("").replace("|\n      \n", TASKS + "title = 'a #b'" + MINE + "\n"),
            RuleCode.CHANGED, "#b'" + MINE, ("query: |",), "|\n      " + TASKS + "title = 'a #b'" + MINE),
    Mistake("comment behind a query", PLAIN.format("").replace("|\n      \n", TASKS + "id = auth.user_id() # his\n"),
            RuleCode.CHANGED, "# his", ("a line of its own",)),
    Mistake("colon in a text", PLAIN.format("").replace("|\n      \n", TASKS + "title = 'a: b'" + MINE + "\n"),
            RuleCode.YAML, ":", ("reads `: `", "query: |"), "|\n      " + TASKS + "title = 'a: b'" + MINE),
    Mistake("list under query", PLAIN.format("").replace("|\n      \n", f"\n      - {TASKS}id = auth.user_id()\n"),
            STRUCTURE, "query", ("list",), "queries"),
    Mistake("text under queries",
            PLAIN.format("").replace("query: |\n      \n", f"queries: {TASKS}id = auth.user_id()\n"),
            STRUCTURE, "queries", ("list",), "query"),
    Mistake("query without key", f"config: {{edition: 3}}\nstreams:\n  mine: {TASKS}id = auth.user_id()\n",
            STRUCTURE, f"{TASKS}id = auth.user_id()", ("query: SELECT",)),
    Mistake("list of streams", "config: {edition: 3}\nstreams:\n  - mine:\n      query: SELECT * FROM t\n",
            STRUCTURE, "", ("without the `- `",)),
    Mistake("edition in quotes", PLAIN.format(TASKS + "id = auth.user_id()").replace("edition: 3", 'edition: "3"'),
            STRUCTURE, '"3"', ("without quotes",), "3"),
    Mistake("yes for true", PLAIN.format(TASKS + "id = auth.user_id()").replace("be: true", "be: yes"),
            STRUCTURE, "yes", ("write `true`",), "true"),
    Mistake("tabs", "config: {edition: 3}\nstreams:\n\tmine:\n\t\tquery: SELECT * FROM t\n",
            RuleCode.YAML, "\t", ("spaces",)),
]  # fmt: skip


def finding(mistake: Mistake) -> RuleError:
    found = findings_in(mistake.text, None, advise=True)
    (one,) = [each for each in found if each.code is mistake.code]
    return one


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.name)
def test_a_mistake_is_shown_at_its_place_with_its_mend(mistake: Mistake) -> None:
    found = finding(mistake)
    assert found.span is not None
    assert found.span.text.rstrip("\n") == mistake.place
    told = f"{found.message}; {found.suggestion}"
    for word in (*mistake.words, *([mistake.fix.strip()] if mistake.fix and "\n" not in mistake.fix else ())):
        assert word in told
    assert not any(name in told for name in ("Placeholder", "Struct", "(Is)", "have the source compute it"))
    assert (found.edit and found.edit.replacement) == mistake.fix


@pytest.mark.parametrize("mistake", [each for each in MISTAKES if each.fix is not None], ids=lambda each: each.name)
def test_the_edit_mends_the_mistake(mistake: Mistake) -> None:
    edit = finding(mistake).edit
    assert edit is not None
    assert mistake.code not in {each.code for each in findings_in(edit.applied(), None, advise=True)}
    compile_config(edit.applied())


def test_the_finding_that_is_written_as_json_has_the_edit() -> None:
    mistake = next(each for each in MISTAKES if each.name == "user id without call")
    found = finding(mistake)
    start = mistake.text.index("auth.user_id")
    assert found.to_dict()["edit"] == {
        "start": start, "end": start + 12, "line": 7, "column": 47, "end_line": 7, "end_column": 59,
        "replacement": "auth.user_id()",
    }  # fmt: skip
    assert pickle.loads(pickle.dumps(found)).edit == found.edit


@pytest.mark.parametrize(("start", "end", "written"), [
    ("'", "'", "auth.parameter(''org'')"), ('"', '"', "auth.parameter('org')"),
    (">\n      ", "", "auth.parameter('org')"), ("", "", "auth.parameter('org')"),
])  # fmt: skip
def test_an_edit_is_written_as_its_yaml_needs(start: str, end: str, written: str) -> None:
    text = PLAIN.format("").replace("|\n      \n", f"{start}{TASKS}id = auth.org{end}\n")
    (found,) = findings_in(text, None)
    assert found.edit is not None
    assert found.edit.replacement == written
    compile_config(found.edit.applied())


@pytest.mark.parametrize("quote", ["'", '"'])
@pytest.mark.parametrize("mistake", [each for each in MISTAKES if "|\n      " in each.text], ids=lambda each: each.name)
def test_an_edit_at_an_escaped_quote_replaces_all_of_it(mistake: Mistake, quote: str) -> None:
    head, _, query = mistake.text.partition("|\n      ")
    query = query.rstrip("\n").replace("\\", "\\\\")
    query = query.replace("'", "''") if quote == "'" else query.replace('"', '\\"')
    found = [each for each in findings_in(f"{head}{quote}{query}{quote}\n", None, advise=True)
             if each.code is mistake.code]  # fmt: skip
    assert (found[0].edit is None) == (mistake.fix is None)
    if found[0].edit is not None:
        compile_config(found[0].edit.applied())


SCHEMA = SourceSchema((
    SourceTable("default", "public", "tasks", (
        SourceColumn("id", "uuid", ValueKind.TEXT), SourceColumn("title", "text", ValueKind.TEXT),
        SourceColumn("number", "bigint", ValueKind.INTEGER), SourceColumn("project_id", "uuid", ValueKind.TEXT),
    )),
    SourceTable("default", "public", "projects", (
        SourceColumn("id", "uuid", ValueKind.TEXT), SourceColumn("owner_id", "text", ValueKind.TEXT),
    )),
))  # fmt: skip


def test_the_schema_says_which_table_has_an_ambiguous_column() -> None:
    query = "SELECT tasks.* FROM tasks JOIN projects ON projects.id = tasks.project_id WHERE owner_id = auth.user_id()"
    (found,) = findings_in(PLAIN.format(query), SCHEMA)
    assert found.suggestion == "write `projects.owner_id`"
    assert found.edit is not None
    compile_config(found.edit.applied(), schema=SCHEMA)


def test_the_schema_tells_a_text_in_double_quotes_from_a_column() -> None:
    (wrong,) = findings_in(PLAIN.format('SELECT * FROM tasks WHERE title = "open" AND id = auth.user_id()'), SCHEMA)
    assert (wrong.code, wrong.suggestion) == (RuleCode.NO_COLUMN, "write `'open'` in single quotes for a text")
    assert wrong.edit is not None
    assert findings_in(wrong.edit.applied(), SCHEMA) == ()
    assert (
        findings_in(PLAIN.format('SELECT * FROM tasks WHERE title = "project_id" AND id = auth.user_id()'), SCHEMA)
        == ()
    )


@pytest.mark.parametrize("query", [
    'SELECT * FROM tasks WHERE "title" = "other" AND assignee_id = auth.user_id()',
    'SELECT * FROM tasks WHERE title = "order" AND assignee_id = auth.user_id()',
    "SELECT * FROM tasks WHERE tags ->> 'a' = 'auth' AND assignee_id = auth.user_id()",
    "SELECT id, number + '1' AS next FROM tasks WHERE assignee_id = auth.user_id()",
    "SELECT * FROM tasks WHERE title IN '[\"a\"]' AND assignee_id = auth.user_id()",
    "SELECT * FROM auth WHERE auth.assignee_id = auth.user_id()",
    "SELECT * FROM tasks WHERE status = 'now' AND due < '2024-01-01' AND assignee_id = auth.user_id()",
    "SELECT * FROM tasks WHERE due < CURRENT_TIMESTAMP AND day >= Current_Date AND assignee_id = auth.user_id()",
])  # fmt: skip
def test_what_may_be_meant_is_not_warned_of(query: str) -> None:
    assert findings_in(PLAIN.format(query), None, advise=True) == ()


def test_explain_shows_the_cast_that_decides() -> None:
    def sends(condition: str) -> str:
        lines = explanation_lines(explain(compile_config(PLAIN.format(TASKS + condition)).plan), 200)
        return next(line.strip() for line in lines if line.strip().startswith("sends"))

    assert sends("CAST(number AS TEXT) = auth.user_id()") == (
        "sends    * of tasks where CAST(number AS TEXT) = auth.user_id()"
    )
    assert sends("number = auth.user_id()") == "sends    * of tasks where number = auth.user_id()"
    assert sends("id = auth.user_id() AND title || number = 'a1'").endswith("(title || number) = 'a1'")


@pytest.mark.parametrize(("column", "value", "rows"), [("number", 5, 0), ("number::text", 5, 1), ("number", "5", 1)])
def test_a_number_is_never_the_text_of_a_request(column: str, value: object, rows: int) -> None:
    from headwater_rules.testing import RulesTest

    text = PLAIN.format(f"SELECT * FROM tasks WHERE {column} = auth.user_id()")
    rules = RulesTest.of_text(text)
    rules.insert("tasks", id=1, number=value)
    assert len(rules.client("5").table("tasks")) == rows
    warned = [each for each in findings_in(text, SCHEMA) if each.code is RuleCode.NEVER_EQUAL]
    assert len(warned) == (column == "number")
