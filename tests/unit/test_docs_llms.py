"""What assistants read: llms.txt has every page of the docs, llms-full.txt their text."""

from __future__ import annotations

import re
from pathlib import Path

from docs.generate import llms

DOCS = Path(__file__).parents[2] / "docs"
INDEX = (DOCS / "README.md").read_text(encoding="utf-8")


def test_short_file() -> None:
    text = llms.llms_txt(INDEX)
    assert re.match(r"# Headwater\n\n> Headwater is a sync backend .+\.\n\n## ", text)
    found = dict(re.findall(r"^- \[.+?\]\((.+?)\): (.+\.)$", text, re.MULTILINE))
    assert set(found) == {page.name for page in DOCS.glob("*.md")} - {"README.md"}


def test_entry_over_lines() -> None:
    (group,) = llms.groups("# A\n\nIntro.\n\n## One\n\n* [B](b.md): it is\n  long.\n* [C](c.md)\n\n## None\n\nText\n")
    assert group == llms.Group("One", (llms.Entry("B", "b.md", "it is long."), llms.Entry("C", "c.md", "")))


def test_long_file() -> None:
    pages = {page.name: page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")}
    text = llms.llms_full_txt(INDEX, pages)
    places = [text.index(pages[each.page].strip()) for group in llms.groups(INDEX) for each in group.entries]
    assert places == sorted(places)


def test_links_out_of_the_docs() -> None:
    text = "[changes](../CHANGELOG.md#added), [rules](../docker/alerts.yaml), [`../x.py`](../x.py), [here](limits.md)"
    fence = "```md\n[kept](../CHANGELOG.md)\n```"
    assert llms.inside(f"{text}\n\n{fence}\n", {"CHANGELOG.md": "changelog.md"}) == (
        "[changes](changelog.md#added), rules (`docker/alerts.yaml`), `../x.py`, [here](limits.md)" + f"\n\n{fence}\n"
    )


def test_links_of_a_file_elsewhere() -> None:
    text = "[how](../docs/limits.md#a), [compose](compose.yaml), [site](https://example.com)"
    assert llms.from_project(text, "docker") == "[how](limits.md#a), compose, [site](https://example.com)"
    assert llms.from_project("[how](docs/limits.md), [readme](README.md)", "") == "[how](limits.md), readme"


def test_error_code_links() -> None:
    text = "HW_2021, `HW_R301` and (PSYNC_S1141), `[HW_1001] x`, [HW_2040](a.md)\n\n```\nHW_2021\n```\n"
    assert llms.with_codes(text) == (
        "[HW_2021](errors.md#hw_2021), [`HW_R301`](errors.md#hw_r301) and ([PSYNC_S1141](errors.md#psync_s1141)), "
        "`[HW_1001] x`, [HW_2040](a.md)\n\n```\nHW_2021\n```\n"
    )


def test_first_page() -> None:
    text = llms.opening(INDEX)
    assert "make demo" in text
    assert "\n## " not in text
    assert "*Not run here" not in text
