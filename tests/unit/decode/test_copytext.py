"""Row lines: the text form of COPY, read and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.decode import copytext
from headwater.decode.copytext import join_cells, key_cells, split_line
from headwater.decode.wire import DecodeError

cells = st.one_of(st.none(), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
awkward = st.one_of(cells, st.text(st.sampled_from("\b\f\n\r\t\v\\N.a")))


@given(st.lists(awkward, min_size=1))
def test_join_and_split(row: list[str | None]) -> None:
    line = join_cells(row)
    assert "\n" not in line
    assert split_line(line, len(row)) == tuple(row)


@given(st.lists(awkward, min_size=1), st.sets(st.integers(0, 4)))
def test_large_line(row: list[str | None], wanted: set[int]) -> None:
    line = join_cells(row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copytext, "_LARGE", 3)
        assert split_line(line, len(row)) == tuple(row)
        found = key_cells(line, len(row), wanted)
        assert [found[i] for i in wanted if i < len(row)] == [row[i] for i in wanted if i < len(row)]
        if len(line) > 3:
            with pytest.raises(DecodeError, match="columns"):
                key_cells(line, len(row) + 1, wanted)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("1\tone", ("1", "one")),
        ("\\N", (None,)),
        ("\\N\t\t\\N", (None, "", None)),
        ("\\\\N", ("\\N",)),
        ("\\\\.", ("\\.",)),
        ("a\\tb\tc", ("a\tb", "c")),
        ("\\b\\f\\n\\r\\t\\v\\\\", ("\b\f\n\r\t\v\\",)),
        ("\x01\x7f", ("\x01\x7f",)),
        ("naïve ☃ \U0001f600", ("naïve ☃ \U0001f600",)),
        ("\t", ("", "")),
    ],
)
def test_lines_of_postgres(line: str, row: tuple[str | None, ...]) -> None:
    assert split_line(line, len(row)) == row
    assert join_cells(row) == line


def test_empty_line() -> None:
    assert split_line("", 1) == ("",)
    assert split_line("", 0) == ()
    assert join_cells(()) == join_cells(("",)) == ""


@pytest.mark.parametrize(("line", "width"), [("a\tb", 1), ("a", 2), ("a", 0), ("", 2)])
def test_line_of_another_width(line: str, width: int) -> None:
    with pytest.raises(DecodeError, match=f"{width} columns"):
        split_line(line, width)


@pytest.mark.parametrize("line", ["a\tgeheim\\", "a\tgeheim\\x41", "a\tgeheim\\101"])
def test_unknown_escape(line: str) -> None:
    with pytest.raises(DecodeError, match="cell 2") as caught:
        split_line(line, 2)
    assert "geheim" not in str(caught.value)
