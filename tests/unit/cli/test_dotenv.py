"""A secret in .env is the same to Headwater and to Docker Compose, or the file says that it is not."""

from __future__ import annotations

import re
from io import StringIO

import pytest
from dotenv import dotenv_values
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.init.files import dotenv_line

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
