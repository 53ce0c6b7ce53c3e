"""All errors of a sync config come at once: none hides another."""

from __future__ import annotations

from tests.unit.rules.rules_store import errors_of

MANY = """\
config:
  edition: 3
  timestamp_max_precision: days
  strikt: true
with:
  spare: SELECT foo(x) AS y FROM lists
streams:
  a:
    queries:
      - SELECT foo(x), bar(y) + baz(z) AS q FROM todos WHERE upper(a, b) = lowr(c) AND b > auth.user_id() AND d ~ 'x'
      - SELECT x.id, y FROM todos LEFT JOIN lists USING (id) ORDER BY 1 LIMIT 3
      - SELECT * FRM t
      - 5
    priority: 9
    auto_subscribe: maybe
  b:
    query: SELECT id FROM todos WHERE foo(id)
    queries: [SELECT id FROM todos WHERE bar(id)]
    with: {own: SELECT id FROM lists ORDER BY 1}
  c: []
  d:
    query: SELECT id FROM json_eech(auth.parameter('x')) AS e, todos WHERE foo(e.value)
  e:
    query: SELECT id FROM todos, todos WHERE a IN (SELECT foo(id) FROM lists WHERE bar(id))
"""


def test_one_error_hides_no_other() -> None:
    found = errors_of(MANY)
    told = [(error.span.line, error.message) for error in found.errors if error.span]
    assert told == [
        (3, "unknown precision `days`"),
        (4, "unknown key `strikt` in `config`"),
        (6, "unknown function `foo`"),
        (10, "unknown function `foo`"),
        (10, "unknown function `bar`"),
        (10, "unknown function `baz`"),
        (10, "`upper` takes 1 argument, not 2"),
        (10, "unknown function `lowr`"),
        (10, "this condition combines the request with a table other than by `=`"),
        (10, "regular expressions are not supported"),
        (11, "no table `x` in scope"),
        (11, "columns must be qualified where several tables are in scope"),
        (11, "only inner joins are supported"),
        (11, "`USING` is not supported"),
        (11, "`ORDER BY` is not supported"),
        (11, "`LIMIT` is not supported"),
        (12, "the SQL cannot be parsed near `t`"),
        (13, "a query must be a text"),
        (14, "`priority` must be one of 0, 1, 2, 3"),
        (15, "`auto_subscribe` must be true or false"),
        (16, "stream `b` has both `query` and `queries`"),
        (17, "unknown function `foo`"),
        (18, "unknown function `bar`"),
        (19, "`ORDER BY` is not supported"),
        (20, "stream `c` must be a mapping"),
        (22, "`json_eech` cannot stand in FROM"),
        (22, "unknown function `foo`"),
        (24, "two tables are called `todos`"),
        (24, "unknown function `foo`"),
        (24, "unknown function `bar`"),
    ]


def test_one_error_hides_no_other_in_bucket_definitions() -> None:
    found = errors_of(
        "bucket_definitions:\n"
        "  a:\n"
        "    parameters: SELECT foo(id) AS x FROM lists\n"
        "    data: [SELECT * FROM todos WHERE bar(y) = bucket.x]\n"
        "  b:\n"
        "    parameters: SELECT id AS x FROM lists WHERE owner = request.user_id()\n"
        "    data:\n"
        "      - SELECT * FROM todos WHERE bar(y)\n"
        "      - SELECT * FROM todos WHERE baz(y) AND list_id = bucket.z\n"
    )
    assert [(error.span and error.span.line, error.message) for error in found.errors] == [
        (3, "unknown function `foo`"),
        (4, "unknown function `bar`"),
        (8, "this data query does not use `bucket.x`"),
        (8, "unknown function `bar`"),
        (9, "unknown function `baz`"),
        (9, "the parameter queries give no `z`"),
    ]
