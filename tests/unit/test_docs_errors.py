"""The reference of error codes says what the code says."""

from __future__ import annotations

import re
from collections import Counter

from docs.generate import errors
from headwater.codes import CODES
from headwater.errors import HeadwaterError

_CODE = re.compile(r"\b(?:HW|PSYNC)_[A-Z]?\d{3,4}\b")
_SOURCES = [path for room in ("backend", "sync_rules") for path in (errors.ROOT / room).rglob("*.py")]


def test_page_is_up_to_date() -> None:
    assert errors.PAGE.read_text("utf-8") == errors.page(), "run make reference"


def test_codes_and_table() -> None:
    used = {c for path in _SOURCES if path.name != "codes.py" for c in _CODE.findall(path.read_text("utf-8"))}
    assert used - {HeadwaterError.code} == set(errors.entries())


def test_codes_in_the_documents_exist() -> None:
    pages = [*(errors.ROOT / "docs").glob("*.md"), errors.ROOT / "README.md"]
    spoken = {code for page in pages for code in _CODE.findall(page.read_text("utf-8"))}
    assert spoken
    assert not spoken - set(errors.entries())


def test_codes_have_sentences() -> None:
    for code, each in CODES.items():
        for text in (each.meaning, each.remedy):
            assert re.match(r"[A-Z`].*[.]$", text), (code, text)


def test_one_class_per_code() -> None:
    """Clients and dashboards go by codes."""
    classes, found = [HeadwaterError], list[type[HeadwaterError]]()
    while classes:
        one = classes.pop()
        found.append(one)
        classes += one.__subclasses__()
    # By name: a test that imports modules again has made some classes twice
    made = {
        (each.__module__, each.__qualname__): each.code
        for each in found
        if "code" in vars(each) and each.__module__.startswith("headwater.")
    }
    codes = Counter(code for code in made.values() if code.startswith("HW_"))
    assert [code for code, times in codes.items() if times > 1] == []
