"""The reference of error codes says what the code says."""

from __future__ import annotations

import re
from collections import Counter

from docs.generate import errors
from headwater.errors import HeadwaterError


def test_every_code_is_explained_and_the_page_is_as_the_code_is() -> None:
    assert errors.PAGE.read_text("utf-8") == errors.page(), "run make reference"


def test_codes_that_the_documents_speak_of_exist() -> None:
    known = {entry.code for entry in errors.entries()}
    pages = [*(errors.ROOT / "docs").glob("*.md"), errors.ROOT / "README.md"]
    spoken = {code for page in pages for code in re.findall(r"(?:HW|PSYNC)_[A-Z]?\d{3,4}\b", page.read_text("utf-8"))}
    assert spoken
    assert not spoken - known


def test_a_code_of_ours_belongs_to_one_error() -> None:
    """Clients and dashboards go by codes."""
    errors.entries()  # which imports all modules
    classes, found = [HeadwaterError], list[type[HeadwaterError]]()
    while classes:
        one = classes.pop()
        found.append(one)
        classes += one.__subclasses__()
    made = {each for each in found if "code" in vars(each) and each.__module__.startswith("headwater.")}
    codes = Counter(each.code for each in made if each.code.startswith("HW_"))
    assert [code for code, times in codes.items() if times > 1] == []


def test_what_is_known_only_when_it_happens_is_left_out() -> None:
    meanings = {entry.code: entry.meaning for entry in errors.entries()}
    assert meanings["HW_2011"] == "Postgres … is too old; upgrade it to 14 or newer"
    assert "not all that they are computed from is published" in meanings["HW_2027"]
    assert "hw_" not in "".join(meanings.values()).lower().replace("hw_r", "")
