"""How `headwater init` encrypts, if the URI does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.cli.init import run as init
from headwater.source.connect import SourceSettings
from headwater_rules.propose.outline import OutlinedTable


@pytest.mark.parametrize(
    ("host", "sslmode"),
    [
        ("localhost", "disable"),
        ("postgres", "disable"),
        ("nas.local", "disable"),
        ("host.docker.internal", "disable"),
        ("10.0.0.7", "verify-full"),
        ("db.shop.internal", "verify-full"),
        ("shop.europe-west1-b.c.project.internal", "verify-full"),
        ("db.example.com", "verify-full"),
    ],
)
def test_only_a_database_that_is_near_is_asked_without_tls(
    host: str, sslmode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SourceSettings] = []

    def no_tables(source: SourceSettings) -> list[OutlinedTable]:
        asked.append(source)
        return []

    monkeypatch.setattr(init, "read_outline", no_tables)
    with pytest.raises(init.NothingToProposeError):
        init.run(f"postgresql://app@{host}/shop", tmp_path, init.Wishes(), ask=False, force=False)
    assert [each.sslmode for each in asked] == [sslmode]
