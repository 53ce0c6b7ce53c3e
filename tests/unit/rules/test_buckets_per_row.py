"""Which queries have a bucket for each row of a table, and may lead a device to many of them."""

from __future__ import annotations

import pytest

from headwater_rules.compiler.advice import buckets_per_row
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleCode, Severity
from tests.unit.rules.rules_store import place_of, plan_of

MINE = "(SELECT k FROM m WHERE u = auth.user_id())"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (f"SELECT * FROM t WHERE id IN {MINE}", [("public.t", "id")]),
        (f"SELECT * FROM t WHERE id::text IN {MINE}", [("public.t", "id")]),
        (f"SELECT * FROM t WHERE row_id() IN {MINE}", [("public.t", "row_id()")]),
        (f"SELECT * FROM t WHERE id IN {MINE} OR public = 1", [("public.t", "id")]),
        (f"SELECT * FROM t WHERE id IN {MINE} AND kind = auth.parameter('kind')", [("public.t", "id")]),
        ("SELECT t.* FROM t JOIN m ON m.k = t.id WHERE m.u = auth.user_id()", [("public.t", "id")]),
        ("SELECT * FROM t WHERE id IN auth.parameter('ids')", [("public.t", "id")]),
        (f"SELECT * FROM t WHERE list_id IN {MINE}", []),
        (f"SELECT * FROM t WHERE lower(id) IN {MINE}", []),
        (f"SELECT * FROM t WHERE substring(id::text, 1, 2) IN {MINE}", []),
        ("SELECT * FROM t WHERE id = auth.user_id()", []),
        (f"SELECT * FROM t WHERE id IN {MINE} AND id = subscription.parameter('id')", []),
        ("SELECT * FROM t WHERE id IN (SELECT org_id FROM users WHERE id = auth.user_id())", []),
        ("SELECT * FROM t", []),
    ],
)
def test_buckets_per_row(query: str, found: list[tuple[str, str]]) -> None:
    assert [(each.table, each.value) for each in buckets_per_row(plan_of(query))] == found


def test_buckets_per_row_advice() -> None:
    text = f"config: {{edition: 3, strict: true}}\nstreams:\n  lists:\n    query: SELECT * FROM t WHERE id IN {MINE}\n"
    assert compile_config(text).warnings == ()
    (warning,) = compile_config(text, advise=True).warnings
    assert (warning.code, warning.severity) == (RuleCode.BUCKET_PER_ROW, Severity.WARNING)
    assert warning.message == "`lists` has one bucket for each row of `public.t`, by `id`"
    assert place_of(warning).line == 3
