"""llms.txt and llms-full.txt: what an assistant reads to answer questions about Headwater.

The sections and what is said of each page are those of docs/README.md, which is the site's menu, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_HEADING = re.compile(r"## +(.+)")
_ENTRY = re.compile(r"[*-] +\[([^\]]+)\]\(([\w./-]+\.md)\)(?:: (.+))?")
_FENCE = re.compile(r"^(```.*?^```|~~~.*?^~~~)", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(`[^`\n]+`)")
_CODE = re.compile(r"(?<![\w\[#/-])((?:HW|PSYNC)_[A-Z]?\d{3,4})(?![\w\]])")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^):\s]+)\)")
_LINK_OUT = re.compile(r"\[([^\]]+)\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the index. `about` is one sentence, or empty."""

    title: str
    page: str
    about: str


@dataclass(frozen=True, slots=True)
class Group:
    """Pages under one heading of the index."""

    title: str
    entries: tuple[Entry, ...]


def groups(index: str) -> tuple[Group, ...]:
    """The headings of the index and the pages under each, in its order. An entry is `* [Title](page.md): sentence`,
    which may go on in lines that are indented. Headings without pages are left out."""
    found: list[tuple[str, list[Entry]]] = []
    for line in re.sub(r"\n +(?=\S)", " ", index).splitlines():
        if heading := _HEADING.fullmatch(line):
            found.append((heading[1].strip(), []))
        elif found and (entry := _ENTRY.fullmatch(line.strip())):
            found[-1][1].append(Entry(entry[1], entry[2], entry[3] or ""))
    return tuple(Group(title, tuple(entries)) for title, entries in found if entries)


def opening(index: str) -> str:
    """The index up to its first heading: what is above the menu, without marks for the tests."""
    return re.sub(r"^\*Not run here.*\*\n\n", "", index.partition("\n## ")[0] + "\n", flags=re.MULTILINE)


def summary(index: str) -> str:
    """The first paragraph of the index, in one line."""
    paragraphs = [each.strip() for each in index.split("\n\n")]
    return " ".join(next(each for each in paragraphs if each and not each.startswith("#")).split())


def llms_txt(index: str) -> str:
    """The short one, in the form of llmstxt.org: what Headwater is, and a link to each page's Markdown."""
    lines = ["# Headwater", "", f"> {summary(index)}", ""]
    for group in groups(index):
        lines += [f"## {group.title}", ""]
        lines += [
            f"- [{each.title}]({each.page})" + (f": {each.about}" if each.about else "") for each in group.entries
        ]
        lines.append("")
    return "\n".join(lines)


def llms_full_txt(index: str, pages: Mapping[str, str]) -> str:
    """The long one: the text of every page, by its name, in the order of the index."""
    order: Sequence[str] = [each.page for group in groups(index) for each in group.entries]
    parts = [f"# Headwater\n\n> {summary(index)}\n"]
    parts += [f"<!-- {name} -->\n\n{pages[name].strip()}\n" for name in order if name in pages]
    return "\n\n".join(parts)


def inside(text: str, project: Mapping[str, str]) -> str:
    """A page's text with the links that lead out of docs/ changed: to the page of the site that shows that file, by
    `project`, or into the file's name. Code is left as it is."""
    pieces = _FENCE.split(text)
    pieces[::2] = [_LINK_OUT.sub(lambda link: _led_in(link, project), each) for each in pieces[::2]]
    return "".join(pieces)


def with_codes(text: str) -> str:
    """A page's text in which each error code is a link to what it means."""
    pieces = _FENCE.split(text)
    pieces[::2] = ["".join(_codes_of(each)) for each in pieces[::2]]
    return "".join(pieces)


def _codes_of(text: str) -> Iterator[str]:
    for number, piece in enumerate(_SPAN.split(text)):
        if number % 2 == 0:
            yield _CODE.sub(lambda code: f"[{code[1]}](errors.md#{code[1].lower()})", piece)
        elif code := _CODE.fullmatch(piece.strip("`")):
            yield f"[{piece}](errors.md#{code[1].lower()})"
        else:
            yield piece


def from_project(text: str, place: str) -> str:
    """The text of a file of the project as a page of the site: links into docs/ lead to its pages, others become the
    file's name. `place` is the file's folder, from the root of the project."""
    up = "../" if place else ""

    def led(link: re.Match[str]) -> str:
        label, target = link[1], link[2]
        if target.startswith(f"{up}docs/"):
            return f"[{label}]({target.removeprefix(f'{up}docs/')})"
        return label

    pieces = _FENCE.split(text)
    pieces[::2] = [_LINK.sub(led, each) for each in pieces[::2]]
    return "".join(pieces)


def _led_in(link: re.Match[str], project: Mapping[str, str]) -> str:
    label, file, anchor = link[1], link[2], link[3] or ""
    if file in project:
        return f"[{label}]({project[file]}{anchor})"
    return label if file in label else f"{label} (`{file}`)"
