"""`headwater rules test`: named cases of what users get, run without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command import Run

RULES = """config: {edition: 3}
streams:
  lists:
    auto_subscribe: true
    query: >
      SELECT * FROM lists
      WHERE owner_id = auth.user_id() OR id IN (SELECT list_id FROM members WHERE user_id = auth.user_id())
  todos:
    query: SELECT * FROM todos WHERE list_id = subscription.parameter('list') AND auth.parameter('role') = 'admin'
"""
CASES = """rules: sync.yaml
rows:
  lists:
    - {id: 1, owner_id: ann}
    - {id: 2, owner_id: bob}
cases:
  Ann gets her list:
    user: ann
    gets: {lists: [1]}
  Ann gets a list that is shared with her:
    user: ann
    rows:
      members: [{id: 7, list_id: 2, user_id: ann}]
    gets: {lists: [1, {id: 2, owner_id: bob}]}
  an admin gets the todos of the list on screen:
    user: {sub: eve, role: admin}
    subscriptions: {todos: {list: 1}}
    rows:
      todos: [{id: 11, list_id: 1, title: x}, {id: 12, list_id: 2, title: y}]
    gets: {todos: [{id: 11, title: x}]}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "sync.yaml").write_text(RULES)
    (tmp_path / "cases.yaml").write_text(CASES)
    return tmp_path


def test_cases_that_pass(headwater_here: Run, files: Path) -> None:
    outcome = headwater_here("rules", "test", "cases.yaml")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-1] == "3 cases passed, 0 failed"
    assert "ok     Ann gets a list that is shared with her" in outcome.out


def test_a_missing_row_and_its_reason(headwater_here: Run, files: Path) -> None:
    (files / "cases.yaml").write_text(CASES.replace("{lists: [1]}", "{lists: [1, 2]}"))
    outcome = headwater_here("rules", "test", "cases.yaml")
    assert outcome.code == 1
    assert outcome.out.splitlines()[:4] == [
        "failed Ann gets her list",
        "  this client's rows of `lists` are not the expected ones",
        '    missing: {"id": "2"}',
        '      stream `lists`: the row is in bucket lists["bob"], the client has lists["ann"]',
    ]
    assert outcome.out.splitlines()[-1] == "2 cases passed, 1 failed"


def test_outcomes_as_json(headwater_here: Run, files: Path) -> None:
    (files / "cases.yaml").write_text(CASES.replace("{lists: [1]}", "{lists: [1, 2]}"))
    (files / "more.yaml").write_text(CASES)
    outcome = headwater_here("rules", "test", "more.yaml", "cases.yaml", "--json")
    told = json.loads(outcome.out)
    assert (outcome.code, told["passed"], told["failed"]) == (1, 5, 1)
    assert [each["file"] for each in told["cases"]] == ["more.yaml"] * 3 + ["cases.yaml"] * 3
    (failed,) = [each for each in told["cases"] if not each["ok"]]
    assert failed["case"] == "Ann gets her list"
    assert 'missing: {"id": "2"}' in failed["problems"][0]


def test_errors_of_a_file_as_json(headwater_here: Run, files: Path) -> None:
    (files / "cases.yaml").write_text(CASES.replace("members:", "membrs:", 1))
    outcome = headwater_here("rules", "test", "cases.yaml", "--json")
    assert outcome.code == 1
    assert "did you mean `members`?" in str(json.loads(outcome.out)["errors"])


def test_rows_of_a_table_that_the_case_does_not_name_fail_it(headwater_here: Run, files: Path) -> None:
    (files / "cases.yaml").write_text(CASES.replace("gets: {lists: [1]}", "gets: {}"))
    outcome = headwater_here("rules", "test", "cases.yaml")
    assert outcome.code == 1
    assert 'unexpected: {"id": "1", "owner_id": "ann"}' in outcome.out


def test_cases_run_against_another_config(headwater_here: Run, files: Path) -> None:
    (files / "next.yaml").write_text(RULES.replace("owner_id = auth.user_id() OR ", ""))
    outcome = headwater_here("rules", "test", "cases.yaml", "--rules", "next.yaml")
    assert outcome.code == 1
    assert outcome.out.splitlines()[-1] == "1 case passed, 2 failed"


@pytest.mark.parametrize(("before", "after", "told", "line"), [
    ("members:", "membrs:", "did you mean `members`?", 13),
    ("{lists: [1]}", "{list: [1]}", "did you mean `lists`?", 7),
    ("{todos: {list", "{todo: {list", "did you mean `todos`?", 15),
    ("    user: ann\n    gets: {lists: [1]}", "    gets: {lists: [1]}", "needs `user` and `gets`", 7),
    ("user: ann", "user: [ann]", "`user` must be an id, or a mapping of claims", 8),
    ("gets: {lists: [1]}", "gets: {lists: 1}", "begin each entry with `- `", 9),
    ("rows:\n  lists", "row:\n  lists", "did you mean `rows`?", 2),
    ("subscriptions: {todos: {list: 1}}", "subscriptions: todos", "subscriptions are a list of names", 17),
    ("  Ann gets a list that is shared with her:", "  Ann gets her list:", "`Ann gets her list` is defined twice", 10),
])  # fmt: skip
def test_a_wrong_case_is_shown_at_its_place(
    headwater_here: Run, files: Path, before: str, after: str, told: str, line: int
) -> None:
    (files / "cases.yaml").write_text(CASES.replace(before, after, 1))
    outcome = headwater_here("rules", "test", "cases.yaml")
    assert outcome.code == 1
    assert told in outcome.err
    assert f"--> line {line}, " in outcome.err


@pytest.mark.parametrize(("text", "told"), [
    ("", "the file of cases is empty"), ("rules: sync.yaml\ncases: {}\n", "has no cases"),
    ("cases:\n  a: {user: ann, gets: {}}\n", "does not say which sync config"), ("a: [", "not valid YAML"),
    ("rules: none.yaml\ncases:\n  a: {user: ann, gets: {}}\n", "the sync config can't be read"),
])  # fmt: skip
def test_a_file_without_cases_is_refused(headwater_here: Run, files: Path, text: str, told: str) -> None:
    (files / "cases.yaml").write_text(text)
    outcome = headwater_here("rules", "test", "cases.yaml")
    assert outcome.code != 0
    assert told in outcome.err


def test_a_config_with_errors_is_shown_instead(headwater_here: Run, files: Path) -> None:
    (files / "sync.yaml").write_text(RULES.replace("auth.user_id()", "auth.user_id"))
    outcome = headwater_here("rules", "test", "cases.yaml")
    assert outcome.code == 1
    assert "write `auth.user_id()`" in outcome.err
