"""What mkdocs does here beside turning pages into HTML: the menu from the index, the pages that lie elsewhere in the
project, and the texts for assistants."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))

from docs.generate import llms  # noqa: E402 - found by the line above

PROJECT = {"CHANGELOG.md": "changelog.md", "docker/README.md": "containers.md"}
"""Files of the project that are pages of the site, and their names there."""
_EMPTY_HEADING = re.compile(r"<th(?: [^>]*)?></th>")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The menu is the index, and what lies elsewhere in the project."""
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    menu: list[object] = [{"Overview": "README.md"}]
    menu += [{group.title: [{each.title: each.page} for each in group.entries]} for group in llms.groups(index)]
    config["nav"] = [*menu, {"Containers": "containers.md"}, {"Changes": "changelog.md"}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere in the project."""
    from mkdocs.structure.files import File

    for name, text in _project_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links out of docs/ lead to pages of the site, or nowhere, and error codes to what they mean. The first page ends
    where the menu begins."""
    if page.file.src_uri == "README.md":
        markdown = llms.opening(markdown)
    text = llms.inside(markdown, PROJECT)
    return text if page.file.src_uri == "errors.md" else llms.with_codes(text)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Headings of tables that say nothing are cells."""
    html = _EMPTY_HEADING.sub("<td></td>", html)
    return f'<div class="first">{html}</div>' if page.file.src_uri == "README.md" else html


def on_post_build(config: MkDocsConfig) -> None:
    """Beside each page its Markdown, and the two texts for assistants."""
    site = Path(config["site_dir"])
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = {each.name: llms.inside(each.read_text(encoding="utf-8"), PROJECT) for each in DOCS.glob("*.md")}
    pages |= _project_pages()
    for name, text in pages.items():
        (site / name).write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text(llms.llms_txt(index), encoding="utf-8")
    (site / "llms-full.txt").write_text(llms.llms_full_txt(index, pages), encoding="utf-8")


def _project_pages() -> dict[str, str]:
    return {
        name: llms.from_project((ROOT / file).read_text(encoding="utf-8"), str(Path(file).parent).removeprefix("."))
        for file, name in PROJECT.items()
    }
