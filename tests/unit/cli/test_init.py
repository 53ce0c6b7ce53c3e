"""What `headwater init` writes: how it encrypts if the URI does not say, what its page is made of, and secrets in .env
that are the same to Headwater and to Docker Compose, or the file says that they are not."""

from __future__ import annotations

import json
import re
from importlib import resources
from io import StringIO
from pathlib import Path

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.init import run as init
from headwater.cli.init.files import dotenv_line
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
        init.run([f"postgresql://app@{host}/shop"], tmp_path, ask=False, force=False)
    assert [each.sslmode for each in asked] == [sslmode]


def test_page_names_tested_packages() -> None:
    web = resources.files(init.__package__).joinpath("web", "package.json")
    page = json.loads(web.read_text(encoding="utf-8"))
    demo = json.loads((Path(__file__).parents[3] / "clients" / "web" / "package.json").read_text())
    assert page["dependencies"].items() <= demo["dependencies"].items()
    assert page["devDependencies"].items() <= demo["devDependencies"].items()
    assert page["overrides"] == demo["overrides"]


HARD = st.text("ab '\"\\$#={}n\u00e4", min_size=1, max_size=8)


def ours(text: str) -> str | None:
    return dotenv_values(stream=StringIO(text), interpolate=False)["NAME"]


def compose(text: str, comment: str) -> str | None:
    """The value by the rules of Compose's reader: none for a variable, since who knows what it is. Its versions differ
    in what begins a comment."""
    value = text.splitlines()[-1].removeprefix("NAME=")
    if value[0] in {"'", '"'}:
        quote = value[0]
        end = next(at for at, char in enumerate(value) if at and char == quote and value[at - 1] != "\\")
        assert value[end + 1 :] == ""
        return value[1:end].strip(quote) if quote == "'" else None
    bare = value.split(comment)[0].rstrip()
    return None if "$" in bare else bare


@pytest.mark.parametrize(
    "secret",
    ["plain", "a\\b", "C:\\temp\\new", "it's", "$HOME", "a#b", "a #b", '"quoted"', "two words", "a\\\\b", "a\\", "x=1"],
)
def test_common_ones_are_read_alike(secret: str) -> None:
    line = dotenv_line("NAME", secret)
    assert not line.startswith("#")
    assert [ours(line), compose(line, "#"), compose(line, " #")] == [secret] * 3


@pytest.mark.parametrize("secret", ["it's $5", "'$\\", "a\\\\$", " it's"])
def test_values_read_differently(secret: str) -> None:
    line = dotenv_line("NAME", secret)
    assert "Docker Compose" in line.splitlines()[0]
    assert ours(line) == secret


@given(HARD)
def test_any_value(secret: str) -> None:
    line = dotenv_line("NAME", secret)
    assert ours(f"BEFORE=1\n{line}AFTER=1\n") == secret
    assert len(line.splitlines()) == 1 or "Docker Compose" in line
    if not line.startswith("#"):
        assert [compose(line, "#"), compose(line, " #")] == [secret] * 2
    assert re.search("(?m)^NAME=", line)
