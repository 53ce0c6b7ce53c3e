"""Which types are known without asking, and how the asked-for ones join them."""

from __future__ import annotations

import pickle

from headwater.decode.settings import SESSION_SETTINGS, settings_options, statements_for
from headwater.decode.types import TypeCatalog, TypeKind

TEXT, TEXT_ARRAY, MOOD = 25, 1009, 16400


def test_missing() -> None:
    assert TypeCatalog().missing([MOOD, TEXT, TEXT_ARRAY, 16399, MOOD]) == [16399, MOOD]
    described = TypeCatalog.from_rows([(MOOD, "public", "mood", "e", 0, ",", [], [])])
    assert described.missing([MOOD]) == []
    assert TypeCatalog().missing([MOOD]) == [MOOD]
    assert pickle.loads(pickle.dumps(described)) == described


def test_unknown_kind_of_type() -> None:
    catalog = TypeCatalog.from_rows([(MOOD, "public", "novelty", "z", 0, ",", [], [])])
    novelty = catalog.get(MOOD)
    assert novelty is not None
    assert novelty.kind is TypeKind.BASE


def test_settings_options() -> None:
    assert settings_options().split(" -c ")[0] == "-c TimeZone=UTC"
    assert settings_options().count("-c ") == len(SESSION_SETTINGS)


def test_statements_for() -> None:
    assert statements_for(160004) == ()
    assert statements_for(170000) == ("set transaction_timeout = 0",)
