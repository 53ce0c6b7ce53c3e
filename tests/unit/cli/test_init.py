"""How `headwater init` encrypts, if the URI does not say, and what the page that it writes is made of."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

from headwater.cli.init import run as init
from headwater.errors import HeadwaterError
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
def test_tls_of_a_near_database(host: str, sslmode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SourceSettings] = []

    def no_tables(source: SourceSettings) -> list[OutlinedTable]:
        asked.append(source)
        return []

    monkeypatch.setattr(init, "read_outline", no_tables)
    with pytest.raises(HeadwaterError, match="HW_8601"):
        init.run(f"postgresql://app@{host}/shop", tmp_path, ask=False, force=False)
    assert [each.sslmode for each in asked] == [sslmode]


def test_page_names_tested_packages() -> None:
    web = resources.files(init.__package__).joinpath("web", "package.json")
    page = json.loads(web.read_text(encoding="utf-8"))
    demo = json.loads((Path(__file__).parents[3] / "clients" / "web" / "package.json").read_text())
    assert page["dependencies"] == demo["dependencies"]
    assert page["devDependencies"].items() <= demo["devDependencies"].items()
    assert page["overrides"] == demo["overrides"]
