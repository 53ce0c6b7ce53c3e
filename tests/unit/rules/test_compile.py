"""What a compiled config consists of: names that follow from the row side, sharing, warnings, determinism."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from headwater_rules.compiler.compile import Compiled, compile_config
from headwater_rules.errors import RuleCode, SyncConfigError
from headwater_rules.plan import ConversionOptions
from tests.unit.rules.rules_store import plan_of

EXAMPLES = sorted((Path(__file__).parents[3] / "sync_rules" / "examples").glob("*.yaml"))


def bucket_names(*queries: str, stream: str = "s") -> list[str]:
    return [bucket.name for bucket in plan_of(*queries, stream=stream).buckets]


def compiled(stream: str, options: str = "edition: 3") -> Compiled:
    return compile_config(f"config: {{{options}}}\nstreams:\n  s:\n{stream}")


def test_stable_names() -> None:
    # Changing one of these makes every device download its data again: raise SEMANTICS_VERSION only with a reason.
    plan = plan_of(
        "SELECT * FROM todos WHERE owner_id = auth.user_id() AND NOT done",
        "SELECT id, upper(title) AS title FROM lists WHERE id IN (SELECT list FROM m WHERE user_id = auth.user_id())",
        stream="todos",
    )
    assert [bucket.name for bucket in plan.buckets] == ["todos.86d9345e", "todos.f8614c80"]
    assert [lookup.name for lookup in plan.lookups] == ["lookup.b7ec22e8"]


@pytest.mark.parametrize(
    "query",
    [
        "select * from t where auth.user_id() = a and (b = 1)",
        "SELECT * FROM public.t WHERE b = 1 AND a = auth.user_id()",
        "SELECT * FROM t WHERE b = 1 AND a = auth.parameter('other') AND auth.parameter('role') = 'x'",
        "SELECT * FROM t WHERE b = 1 AND a IN (SELECT k FROM m WHERE u = auth.user_id())",
    ],
)
def test_request_side_keeps_name(query: str) -> None:
    assert bucket_names(query) == bucket_names("SELECT * FROM t WHERE a = auth.user_id() AND b = 1")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t WHERE a = auth.user_id() AND b = 2",
        "SELECT id FROM t WHERE a = auth.user_id() AND b = 1",
        "SELECT * FROM t AS u WHERE a = auth.user_id() AND b = 1",
        "SELECT * FROM other.t WHERE a = auth.user_id() AND b = 1",
        "SELECT * FROM t WHERE c = auth.user_id() AND b = 1",
    ],
)
def test_row_side_changes_name(query: str) -> None:
    assert bucket_names(query) != bucket_names("SELECT * FROM t WHERE a = auth.user_id() AND b = 1")


def test_conversion_changes_name() -> None:
    stream = "    query: SELECT * FROM t\n"
    plain = compiled(stream).plan
    seconds = compiled(stream, "edition: 3, timestamp_max_precision: seconds").plan
    assert seconds.options == ConversionOptions(timestamp_digits=0)
    assert seconds.buckets[0].name != plain.buckets[0].name


def test_or_shares_buckets() -> None:
    plan = plan_of("SELECT * FROM t WHERE a = auth.user_id() OR a IN (SELECT k FROM m WHERE u = auth.user_id())")
    assert len(plan.buckets) == 1
    assert len(plan.streams[0].variants) == 2


def test_shared_lookup() -> None:
    plan = plan_of(
        "SELECT * FROM t WHERE a IN (SELECT k FROM m WHERE u = auth.user_id())",
        "SELECT * FROM v WHERE b IN (SELECT k FROM m WHERE auth.user_id() = u)",
    )
    assert len(plan.lookups) == 1


def test_or_within_a_row() -> None:
    plan = plan_of("SELECT * FROM t WHERE owner = auth.user_id() AND (a = 1 OR (b = 2 AND NOT c) OR d IS NULL)")
    assert len(plan.buckets) == 1
    assert len(plan.buckets[0].sources[0].filters) == 1


def test_pickle_plan() -> None:
    plan = plan_of("SELECT * FROM t WHERE a = auth.user_id() OR b IN (SELECT k FROM m WHERE u = auth.parameter('x'))")
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_plan_is_deterministic() -> None:
    text = EXAMPLES[-1].read_text()
    program = (
        "import sys; from headwater_rules.compiler.compile import compile_config\n"
        "print(compile_config(sys.stdin.read()).plan)"
    )
    plans = [
        subprocess.run(
            [sys.executable, "-c", program],
            input=text,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert plans[0] == plans[1]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_compile(path: Path) -> None:
    found = compile_config(path.read_text().replace("edition: 3", "edition: 3\n  strict: true"))
    older = path.stem == "edition_2"
    assert [warning.code for warning in found.warnings] == ([RuleCode.OLD_EDITION] if older else [])
    assert found.plan.streams


@pytest.mark.parametrize(
    ("query", "dangerous"),
    [
        ("SELECT * FROM t WHERE a = subscription.parameter('x')", True),
        ("SELECT * FROM t WHERE a IN connection.parameter('x')", True),
        ("SELECT * FROM t WHERE connection.parameter('x') = 'open'", True),
        ("SELECT * FROM t WHERE a IN (SELECT k FROM m WHERE u = connection.parameter('x'))", True),
        ("SELECT * FROM t WHERE a = subscription.parameter('x') AND b = auth.user_id()", False),
        ("SELECT * FROM t WHERE a = subscription.parameter('x') AND auth.user_id() IN (SELECT id FROM m)", False),
        ("SELECT * FROM t WHERE a = auth.user_id() AND connection.parameter('x') = 1", False),
        ("SELECT * FROM t", False),
        # a lookup in between
        ("SELECT * FROM t WHERE a IN (SELECT k FROM m WHERE subscription.parameter('x') = 'open')", True),
        (
            "SELECT * FROM t WHERE a IN (SELECT k FROM m WHERE k IN (SELECT o FROM n WHERE connection.parameter('x')))",
            True,
        ),
        ("SELECT * FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.u = connection.parameter('x'))", True),
        ("SELECT t.* FROM t JOIN m ON m.k = t.a WHERE m.u = subscription.parameter('x')", True),
        ("SELECT t.* FROM t JOIN m ON m.k = t.a WHERE subscription.parameter('x') = 'open'", True),
        ("SELECT t.* FROM t, (SELECT k FROM m WHERE connection.parameter('x') = 'open') s WHERE s.k = t.a", True),
        (
            "SELECT * FROM t WHERE a IN (SELECT e.value FROM json_each(connection.parameter('x')) e WHERE e.key = 0)",
            True,
        ),
        ("SELECT * FROM t WHERE a IN (SELECT k FROM m WHERE auth.parameter('r') = connection.parameter('x'))", False),
        ("SELECT * FROM t WHERE a IN (SELECT k FROM m WHERE auth.parameter('r') AND connection.parameter('x'))", False),
        (
            "SELECT * FROM t WHERE a IN (SELECT k FROM m WHERE m.u = auth.user_id() AND connection.parameter('x'))",
            False,
        ),
        ("SELECT * FROM t WHERE a IN (SELECT k FROM m)", False),
        # an alternative that the token has no part in
        ("SELECT * FROM t WHERE auth.parameter('r') OR connection.parameter('x') = 'open'", True),
        ("SELECT * FROM t WHERE NOT (auth.parameter('r') IS NULL AND connection.parameter('x') IS NULL)", True),
        ("SELECT * FROM t WHERE auth.parameter('r') OR (connection.parameter('x') AND auth.parameter('s'))", False),
        ("SELECT * FROM t WHERE (auth.parameter('r') OR connection.parameter('x')) AND auth.parameter('s')", False),
        ("SELECT * FROM t WHERE a = auth.user_id() OR connection.parameter('x') = 'open'", True),
        ("SELECT * FROM t WHERE a IN (auth.user_id(), connection.parameter('x'))", True),
        # a value of the token in the same expression
        *(
            (f"SELECT * FROM t WHERE {condition.replace('SUB', sub).replace('AUTH', 'auth.user_id()')}", dangerous)
            for sub in ("subscription.parameter('x')", "(connection.parameters() ->> 'x')")
            for condition, dangerous in (
                ("a = coalesce(SUB, AUTH)", True),
                ("a = coalesce(AUTH, SUB)", True),
                ("a = ifnull(SUB, AUTH)", True),
                ("a = CASE WHEN SUB IS NULL THEN AUTH ELSE SUB END", True),
                ("a = CASE AUTH WHEN 'x' THEN SUB END", True),
                ("a = iif(SUB = 'all', 'all', AUTH)", True),
                ("a = nullif(SUB, AUTH)", True),
                ("a IN json_array(AUTH, SUB)", True),
                ("a IN json(json_array(SUB, AUTH))", True),
                ("a IN (SELECT e.value FROM json_each(json_array(AUTH, SUB)) e)", True),
                ("json_array(AUTH, SUB) && json_array('x', a)", True),
                ("a = json_array(AUTH, SUB) ->> '$.1'", True),
                ("a = substring(AUTH || SUB, 2)", True),
                ("a = replace(SUB, AUTH, '')", True),
                ("a = AUTH || SUB", True),
                ("a = concat(SUB, '', AUTH)", True),
                ("a = max(AUTH, SUB)", True),
                ("a = AUTH + SUB", True),
                ("(AUTH = 'x' OR SUB = 'y') = true", True),
                ("(AUTH = 'x' OR SUB = 'y') <> false", True),
                ("((AUTH = 'x' OR SUB = 'y') IS TRUE) IS NOT FALSE", True),
                ("(AUTH = SUB) IS NOT FALSE", True),
                ("(AUTH = 'x' AND SUB = 'y') IS NOT TRUE", True),
                ("coalesce(AUTH = 'x' OR SUB = 'y', false)", True),
                ("AUTH != SUB", True),
                ("NOT (AUTH = SUB)", True),
                ("AUTH < SUB", True),
                ("AUTH LIKE SUB", True),
                ("AUTH BETWEEN '' AND SUB", True),
                ("AUTH IS DISTINCT FROM SUB", True),
                ("(AUTH || '/' || SUB) IS NULL", True),
                ("SUB IN (AUTH, 'x')", True),
                ("SUB IN json_array(AUTH, 'x', SUB)", True),
                ("AUTH NOT IN (SUB, connection.parameter('y'))", True),
                ("typeof(AUTH || SUB) = 'text'", True),
                ("a = SUB AND AUTH = connection.parameter('y')", True),
                ("a IN SUB AND AUTH IN SUB", True),
                ("a && SUB AND AUTH IN SUB", True),
                ("a IN (SELECT e.value FROM json_each(SUB) e WHERE AUTH IN SUB)", True),
                ("a = AUTH || auth.parameter('org') || SUB", True),
                ("a = concat(AUTH, NULL, SUB)", True),
                ("a = concat_ws(auth.parameter('by'), AUTH, SUB)", True),
                ("a = SUB AND (AUTH != SUB OR SUB)", True),
                ("a IN (SELECT k FROM m WHERE u = coalesce(SUB, AUTH))", True),
                ("a = coalesce(SUB, AUTH) AND b = SUB", True),
                # what keeps the token's part
                ("a = CASE WHEN SUB = 'x' THEN AUTH ELSE auth.parameter('org') END", False),
                ("a = iif(SUB, AUTH, NULL)", False),
                ("a = coalesce(AUTH, auth.parameter('org'))", False),
                ("a = coalesce(SUB, 'x') AND b = AUTH", False),
                ("a = AUTH || '/' || SUB", False),
                ("a = concat_ws(':', 'user', AUTH, SUB)", False),
                ("a = AUTH || auth.parameter('org') || '/' || SUB", False),
                ("a = json_array(AUTH, SUB)", False),
                ("a = lower(hex(json_object('u', AUTH, 'x', SUB)))", False),
                ("a = SUB AND SUB = AUTH", False),
                ("a = SUB AND SUB IN auth.parameter('orgs')", False),
                ("a IN SUB AND SUB = AUTH", False),
                ("a = SUB AND auth.parameter('role') = 'admin'", False),
                ("a = SUB AND (auth.parameter('role') = 'admin' OR auth.parameter('orgs') IS NOT NULL)", False),
                ("a = SUB AND (auth.parameter('role') = 'admin' AND SUB != 'x') IS TRUE", False),
                ("a = SUB AND (SUB = auth.parameter('o') OR auth.parameter('role') = 'admin')", False),
                ("(AUTH = 'x' AND SUB = 'y') = true", False),
                ("NOT (AUTH != 'x' OR SUB = 'y')", False),
                ("AUTH = SUB", False),
                ("AUTH IS NOT DISTINCT FROM SUB", False),
                ("AUTH || '/' || SUB = 'kim/x'", False),
                ("a IN (SELECT k FROM m WHERE u = AUTH AND f = coalesce(SUB, AUTH))", False),
            )
        ),
        # conditions that every token meets
        *(
            (f"SELECT * FROM t WHERE owner = subscription.parameter('o') AND {condition}", dangerous)
            for condition, dangerous in (
                ("auth.user_id() IS NOT NULL", True),
                ("auth.user_id() = auth.user_id()", True),
                ("length(auth.user_id()) > 0", True),
                ("auth.user_id() = 'kim'", False),
                ("auth.parameter('role') = 'admin'", False),
            )
        ),
        # elements of an array
        *(
            (f"SELECT * FROM t WHERE a IN (SELECT e.value FROM json_each({array}) e WHERE {condition})", dangerous)
            for array, condition, dangerous in (
                ("connection.parameter('x')", "e.value != auth.user_id()", True),
                ("connection.parameter('x')", "e.value LIKE auth.user_id()", True),
                ("connection.parameter('x')", "e.value = auth.user_id() OR e.key = 1", True),
                ("connection.parameter('x')", "e.value = auth.user_id()", False),
                ("connection.parameter('x')", "e.value IN auth.parameter('orgs')", False),
                ("connection.parameter('x')", "auth.parameter('role') = 'admin'", False),
                ("auth.parameter('orgs')", "e.value != connection.parameter('x')", False),
                ("auth.parameter('orgs')", "e.value = connection.parameter('x')", False),
            )
        ),
    ],
)
def test_dangerous_query(query: str, dangerous: bool) -> None:
    stream = f"    query: {query}\n"
    assert [warning.code for warning in compiled(stream).warnings] == ([RuleCode.DANGEROUS] if dangerous else [])
    assert compiled(stream + "    accept_potentially_dangerous_queries: true\n").warnings == ()
    if dangerous:
        with pytest.raises(SyncConfigError, match="clients can send any value"):
            compiled(stream, "edition: 3, strict: true")


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        ("    query: SELECT id, 1 + a FROM t\n", RuleCode.UNNAMED_COLUMN),
        ("    query: SELECT a AS id, * FROM t\n", RuleCode.ALIAS_BEFORE_STAR),
        (
            "    query: SELECT c.* FROM comments c JOIN i ON c.i = i.id WHERE i.o = auth.user_id()\n",
            RuleCode.JOINED_ALIAS,
        ),
        ("    query: SELECT t.table_suffix() AS x, id FROM t\n", RuleCode.NO_EFFECT),
        ("    query: SELECT createdAt FROM t\n", RuleCode.LOWERED),
        ("    query: SELECT * FROM t\n    with: {unused: SELECT id FROM x}\n", RuleCode.NO_EFFECT),
        (
            (
                "    auto_subscribe: true\n    query: SELECT * FROM t WHERE a = subscription.parameter('x') "
                "AND o = auth.user_id()\n"
            ),
            RuleCode.NO_EFFECT,
        ),
    ],
)
def test_warnings(stream: str, code: RuleCode) -> None:
    assert [warning.code for warning in compiled(stream).warnings] == [code]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM t WHERE a = ifnull(subscription.parameter('x'), 'all') AND o = auth.user_id()",
        "SELECT * FROM t WHERE (a = subscription.parameter('x') OR b) AND o = auth.user_id()",
    ],
)
def test_no_warning(query: str) -> None:
    assert compiled(f"    auto_subscribe: true\n    query: {query}\n").warnings == ()


def test_unused_with_query() -> None:
    streams = "streams: {s: {query: SELECT * FROM t WHERE a IN used}}"
    shared = "with: {used: SELECT id FROM u WHERE o = auth.user_id(), unused: SELECT id FROM v}"
    found = compile_config(f"config: {{edition: 3}}\n{shared}\n{streams}\n")
    assert [warning.message for warning in found.warnings] == ["`unused` is not used by any stream"]


def test_stream_settings() -> None:
    plan = compiled("    query: SELECT * FROM t\n    priority: 0\n    auto_subscribe: true\n").plan
    assert (plan.streams[0].priority, plan.streams[0].auto_subscribe) == (0, True)
    assert compiled("    query: SELECT * FROM t\n").plan.streams[0].priority == 3
