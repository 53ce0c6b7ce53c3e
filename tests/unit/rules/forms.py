"""Cases of the forms that rules take: a config, rows, who asks, and which of the rows that device holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import dedent, indent
from typing import TypedDict, Unpack

import pytest

from headwater_rules.testing import RulesTest

Rows = Mapping[str, Sequence[Mapping[str, object]]]
Held = Mapping[str, Sequence[object]]


class Asked(TypedDict, total=False):
    """Who asks, and with what."""

    user: str | Mapping[str, object]
    parameters: Mapping[str, object]
    subscriptions: Sequence[str] | Mapping[str, Mapping[str, object] | Sequence[Mapping[str, object]]]
    include_defaults: bool


def check(edition: int, config: str, rows: Rows, held: Held, asked: Asked) -> None:
    head = "" if edition == 1 else f"config: {{edition: {edition}}}\n"
    rules = RulesTest.of_text(head + dedent(config))
    for table, given in rows.items():
        rules.insert(table, *given)
    asked.setdefault("user", "kim")
    client = rules.client(**asked)

    for table, wanted in held.items():
        client.assert_synced(table, wanted)
    assert client.tables() == tuple(sorted(table for table, wanted in held.items() if wanted))


def form(name: str, config: str, rows: Rows, held: Held, **asked: Unpack[Asked]) -> object:
    """One case of a table of forms. A query alone is that of a stream that everybody gets."""
    if config.lstrip().startswith("SELECT"):
        config = "streams:\n  s:\n    auto_subscribe: true\n    query: |\n" + indent(dedent(config).strip(), " " * 6)
    return pytest.param(config, rows, held, asked, id=name)
