"""Users test their sync rules with the fixtures and assertions of the package, and are told why one fails."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from uuid import UUID

import pytest

from headwater_rules.plan import ConversionOptions, Value
from headwater_rules.testing import RulesTest
from headwater_rules.testing.values import column_value

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
CONFIG = """
config: {edition: 3}
streams:
  lists:
    auto_subscribe: true
    priority: 1
    query: >
      SELECT * FROM lists
      WHERE owner_id = auth.user_id() OR id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())
  open_todos:
    auto_subscribe: true
    query: >
      SELECT id, list_id, title FROM todos
      WHERE NOT done AND list_id IN (SELECT id FROM lists WHERE owner_id = auth.user_id())
  todo:
    query: SELECT * FROM todos WHERE id = subscription.parameter('id') AND auth.parameter('role') = 'admin'
  watched:
    auto_subscribe: true
    query: SELECT * FROM tasks WHERE auth.user_id() IN watchers
"""


@pytest.fixture
def rules() -> RulesTest:
    rules = RulesTest.of_text(CONFIG)
    rules.insert("lists", {"id": 1, "owner_id": "ann", "name": "a"}, {"id": 2, "owner_id": "bob", "name": "b"})
    rules.insert("todos", id=10, list_id=1, title="x", done=False)
    rules.insert("todos", id=11, list_id=1, title="y", done=True)
    return rules


def failure(rules: RulesTest, user: object, table: str, rows: list[object], **options: object) -> str:
    with pytest.raises(AssertionError) as caught:
        rules.assert_synced(user, table, rows, **options)  # type: ignore[arg-type]  # the cases name what they pass
    return str(caught.value)


def test_mistyped_column() -> None:
    rules = RulesTest.of_text(
        "config: {edition: 3}\nstreams:\n"
        "  todos: {auto_subscribe: true, query: 'SELECT id, title FROM todos WHERE owner_id = auth.user_id()'}\n"
        "  lists: {auto_subscribe: true, query: SELECT * FROM lists WHERE owner_id = auth.user_id()}\n"
    )
    known = "the sync config reads no column `{}` of `todos`; did you mean `{}`"
    for mistyped, meant in (("ownerid", "owner_id"), ("owner", "owner_id"), ("Title", "title")):
        row = {"id": 1, "title": "x", "owner_id": "ann", mistyped: "ann"}
        with pytest.raises(ValueError, match=known.format(mistyped, meant)):
            rules.insert("todos", {name: value for name, value in row.items() if name != meant})
        rules.insert("todos", row | {"id": mistyped})  # what is meant is there: the other one is another column
    rules.insert("todos", {"id": 1, "title": "x", "owner_id": "ann", "secret": "s", "note": None}, {"id": 2, "pin": 1})
    rules.insert("lists", id=1, ownerid="ann")
    with pytest.raises(ValueError, match=known.format("ownr_id", "owner_id")):
        rules.update("todos", {"id": 1}, ownr_id="bob")
    rules.update("todos", {"id": 1}, secret="t", title="y")
    rules.assert_synced("ann", "todos", [{"id": 1, "title": "y"}, "ownerid", "owner", "Title"])


def test_client_rows(rules: RulesTest) -> None:
    rules.assert_synced("ann", "lists", [{"id": 1, "name": "a"}])
    rules.assert_synced("ann", "todos", [{"id": 10, "title": "x"}])
    rules.assert_synced("bob", "lists", [2])
    rules.assert_not_synced("bob", "todos")
    rules.assert_not_synced("ann", "lists", [2])
    assert rules.client("ann").tables() == ("lists", "todos")
    assert rules.client("ann").table("todos") == [{"id": "10", "list_id": 1, "title": "x"}]


def test_client_follows_changes(rules: RulesTest) -> None:
    bob = rules.client("bob")
    rules.insert("members", id=5, list_id=1, user_id="bob")
    bob.assert_synced("lists", [1, 2])
    rules.update("lists", {"id": 2}, owner_id="ann")
    bob.assert_synced("lists", [1])
    rules.delete("members", user_id="bob")
    bob.assert_not_synced("lists")
    rules.assert_synced("ann", "lists", [1, 2])


def test_two_grants(rules: RulesTest) -> None:
    rules.insert("members", {"id": 5, "list_id": 1, "user_id": "bob"}, {"id": 6, "list_id": 1, "user_id": "bob"})
    rules.delete("members", id=5)
    rules.assert_synced("bob", "lists", [1, 2])
    rules.delete("members", id=6)
    rules.assert_synced("bob", "lists", [2])


def test_buckets_by_stream(rules: RulesTest) -> None:
    rules.insert("members", id=5, list_id=1, user_id="bob")
    bob = rules.client("bob", subscriptions={"todo": [{"id": 10}, {"id": 11}]})
    assert [(bucket.parameters, bucket.priority) for bucket in bob.buckets("lists")] == [(("bob",), 1), ((1,), 1)]
    assert bob.buckets("todo") == ()
    admin = rules.client({"sub": "bob", "role": "admin"}, subscriptions={"todo": [{"id": 10}, {"id": 11}]})
    assert [(bucket.parameters, bucket.priority) for bucket in admin.buckets("todo")] == [((10,), 3), ((11,), 3)]


@pytest.mark.parametrize(
    ("user", "table", "rows", "options", "said"),
    [
        ("ann", "lists", [1, 3], {}, ['missing: {"id": "3"}', "no inserted row matches this"]),
        ("ann", "lists", [{"id": 1, "name": "z"}], {}, ["lists[\"ann\"], which the client has, but with other values"]),
        ("bob", "lists", [1, 2], {}, [
            'stream `lists`: the row is in bucket lists["ann"], the client has lists["bob"]',
            "the row is in bucket lists[1], the client has none; no row of `members` with user_id = 'bob'",
        ]),
        ("ann", "todos", [10, 11], {}, [
            "stream `open_todos`: the row does not fulfil NOT done",
            "stream `todo`: the client is not subscribed to it, and it is no default (the row is in bucket todo[11])",
        ]),
        ("ann", "todos", [10, 11], {"subscriptions": {"todo": {"id": 11}}}, [
            "stream `todo`: the row is in bucket todo[11], the client has none",
            "the request does not fulfil auth.parameter('role') = 'admin'",
        ]),
        ({"role": "admin"}, "todos", [10], {"subscriptions": ["todo"]}, [
            "the request has no value for subscription.parameter('id')",
            "the request has no value for auth.user_id()",
        ]),
        ("ann", "lists", [], {}, [
            'unexpected: {"id": "1"',
            'stream `lists` (a default): in bucket lists["ann"]',
        ]),
        ({"sub": "bob", "role": "admin"}, "todos", [], {"subscriptions": {"todo": {"id": 10}}}, [
            "stream `todo` (subscribed to): in bucket todo[10]",
        ]),
    ],
)  # fmt: skip
def test_failure_reasons(
    rules: RulesTest, user: object, table: str, rows: list[object], options: dict[str, object], said: list[str]
) -> None:
    message = failure(rules, user, table, rows, **options)
    for words in said:
        assert words in message


def test_null_parameter() -> None:
    rules = RulesTest.of_text("config: {edition: 3}\nstreams: {s: {auto_subscribe: true, query: "
                              "SELECT * FROM t WHERE owner = auth.user_id()}}")  # fmt: skip
    rules.insert("t", id=1, owner=None)
    assert "nothing to compare with: owner is null or a blob in the row" in failure(rules, "u", "t", [1])


def test_row_in_two_forms() -> None:
    rules = RulesTest.of_text("config: {edition: 3}\nstreams: {s: {auto_subscribe: true, queries: ["
                              "'SELECT id, a FROM t', 'SELECT id, b FROM t']}}")  # fmt: skip
    rules.insert("t", id=1, a=1, b=2)
    assert "a row comes from several queries or sources in different forms" in failure(rules, "u", "t", [{"id": 1}])


def test_failing_expression(rules: RulesTest) -> None:
    rules.insert("tasks", id=1, watchers="no JSON")
    assert "an expression failed: tasks 1: watched" in failure(rules, "ann", "lists", [1])
    rules.allow_errors = True
    rules.assert_synced("ann", "lists", [1])
    rules.allow_errors = False
    rules.update("tasks", {"id": 1}, watchers=["ann"])
    rules.assert_synced("ann", "tasks", [1])


def test_failing_request() -> None:
    rules = RulesTest.of_text("config: {edition: 3}\nstreams: {s: {auto_subscribe: true, query: "
                              "\"SELECT * FROM t WHERE id IN auth.parameter('ids')\"}}")  # fmt: skip
    rules.insert("t", id=1)
    client = rules.client({"sub": "u", "ids": "no JSON"})
    assert "stream s: Error evaluating bucket ids" in client.errors[0]
    with pytest.raises(AssertionError, match="an expression failed: stream s"):
        client.assert_not_synced("t")


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda rules: rules.insert("list", id=1), "reads no table `list`; did you mean `lists`"),
        (lambda rules: rules.insert("lists", id=1), "has a row with the id 1 already"),
        (lambda rules: rules.insert("lists", id=3, name="a\0"), "column `name`: Postgres has no text with a NUL"),
        (lambda rules: rules.update("lists", {"id": 9}, name="x"), "`lists` has no row with"),
        (lambda rules: rules.delete("lists", id=9), "`lists` has no row with"),
        (lambda rules: rules.client("ann", subscriptions=["tdo"]), "no stream `tdo`; did you mean `todo`"),
        (lambda rules: rules.assert_not_synced("ann", "lits"), "no query gives a table `lits`.*did you mean `lists`"),
    ],
)  # fmt: skip
def test_mistake_in_a_test(rules: RulesTest, act: object, message: str) -> None:
    assert callable(act)
    with pytest.raises(ValueError, match=message):
        act(rules)


class Color(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "column"),
    [
        (True, 1), (7, 7), (2**63, "9223372036854775808"), (1.5, 1.5), (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"), (Decimal("1.50"), "1.50"), (Decimal("1E+3"), "1000"), (Decimal("NaN"), "NaN"),
        ("é", "é"), (b"x", b"x"), (bytearray(b"x"), b"x"), (None, None), (Color.RED, "red"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2024, 1, 2, 3, 4, 5, 60, tzinfo=UTC), "2024-01-02T03:04:05.000060Z"),
        (datetime(2024, 1, 2, 3, 4, 5), "2024-01-02T03:04:05.000000"), (date(2024, 1, 2), "2024-01-02"),  # noqa: DTZ001
        (time(3, 4, 5), "03:04:05.000000"), ({"a": [1, True]}, '{"a": [1, true]}'),
        (["a", 1, None, True], '["a",1,null,1]'), ([[1], [2]], "[[1],[2]]"), ([], "[]"),
    ],
)  # fmt: skip
def test_python_values(value: object, column: Value) -> None:
    assert column_value(value, ConversionOptions()) == column
    assert type(column_value(value, ConversionOptions())) is type(column)


def test_timestamp_form() -> None:
    moment = datetime(2024, 1, 2, 3, 4, 5, 120000, tzinfo=UTC)
    assert column_value(moment, ConversionOptions(timestamp_digits=3)) == "2024-01-02T03:04:05.120Z"
    assert column_value(moment, ConversionOptions(timestamp_digits=0)) == "2024-01-02T03:04:05Z"
    assert column_value(moment, ConversionOptions(timestamps_iso8601=False)) == "2024-01-02 03:04:05.12Z"


def test_fixture_of_the_package(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = pytester.mkdir("site") / "rules_under_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rules-under-test\nVersion: 1\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (info / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines]))
    monkeypatch.setenv("PYTHONPATH", f"{info.parent}:{ROOT / 'sync_rules'}")
    pytester.makeini("[pytest]\nsync_rules = rules/mine.yaml\n")
    pytester.mkdir("rules").joinpath("mine.yaml").write_text(CONFIG)
    pytester.path.joinpath("broken.yaml").write_text("config: {edition: 3}\nstreams: {s: {query: SELEC}}\n")
    pytester.makepyfile(
        """
        def test_right(sync_rules):
            sync_rules.insert("lists", id=1, owner_id="ann")
            sync_rules.assert_synced("ann", "lists", [1])

        def test_wrong(sync_rules):
            sync_rules.assert_synced("ann", "lists", [1])
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*this client's rows of `lists` are not the expected ones", "*test_wrong*"])
    result.stdout.no_fnmatch_line("*headwater_rules*rules_test.py:*")
    plugin = ("-p", "headwater_rules.pytest_plugin", "-p", "no:randomly")
    result = pytester.runpytest_inprocess(*plugin, "--sync-rules", "broken.yaml")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*broken.yaml:", "*a query begins with `SELECT`", "2 | streams: {s: {query: SELEC}}"])


def test_plugin_imports_nothing() -> None:
    program = (
        "import sys, headwater_rules.compiler.compile, headwater_rules.evaluate.requests\n"
        "assert 'pytest' not in sys.modules\n"
        "for name in [name for name in sys.modules if name.startswith(('headwater_rules', 'sqlglot', 'ruamel'))]:\n"
        "    del sys.modules[name]\n"
        "import headwater_rules.pytest_plugin\n"
        "assert not [name for name in sys.modules if name.startswith(('sqlglot', 'ruamel', 'headwater_rules.c'))]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
