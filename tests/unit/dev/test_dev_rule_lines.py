"""Which lines of a sync config are shown as those that let a row through."""

from __future__ import annotations

from textwrap import dedent

import pytest

from headwater.dev import find_demo_files
from headwater.dev.trace import RuleText
from headwater_rules.compiler.compile import compile_config


@pytest.fixture
def demo() -> RuleText:
    return RuleText(find_demo_files().rules.read_text(encoding="utf-8"))


def shown(rules: RuleText, stream: str) -> list[list[str]]:
    """For each definition of buckets of a stream, its lines."""
    buckets = [each.name for each in compile_config(rules.text).plan.buckets if each.name.startswith(f"{stream}.")]
    lines = rules.text.splitlines()
    return [
        [lines[number - 1].strip() for number in rules.of_bucket(stream, f'{bucket}["x"]').giving] for bucket in buckets
    ]


def test_branches_of_an_or(demo: RuleText) -> None:
    assert shown(demo, "lists") == [
        ["WHERE owner_id = auth.user_id()"],
        ["OR id IN (SELECT list_id FROM list_members WHERE user_id = auth.user_id())"],
    ]


def test_stream_without_condition(demo: RuleText) -> None:
    assert shown(demo, "announcements") == [["query: SELECT * FROM announcements"]]


def test_comment_of_the_next_stream() -> None:
    text = """\
        config:
          edition: 3
        streams:
          mine:
            auto_subscribe: true
            query: >
              SELECT * FROM notes
              WHERE owner = auth.user_id()

          # of everybody
          all:
            auto_subscribe: true
            query: SELECT * FROM news
        """
    rules = RuleText(dedent(text))
    (bucket,) = [each.name for each in compile_config(rules.text).plan.buckets if each.name.startswith("mine")]
    lines = rules.of_bucket("mine", f'{bucket}["u1"]')
    assert (lines.first, lines.last, lines.giving) == (4, 8, (8,))


def test_bucket_definitions_have_lines_too() -> None:
    text = """\
bucket_definitions:
  mine:
    parameters: SELECT request.user_id() AS me
    data:
      - SELECT * FROM notes WHERE owner = bucket.me
  all:
    data: [SELECT * FROM news]
"""
    rules = RuleText(text)
    names = [each.name for each in compile_config(text).plan.buckets]
    lines = {name.partition(".")[0]: rules.of_bucket(name.partition(".")[0], f"{name}[]") for name in names}
    assert (lines["mine"].first, lines["mine"].last) == (2, 5)
    assert (lines["all"].first, lines["all"].giving) == (6, (6, 7))
