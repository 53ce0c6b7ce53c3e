"""Converts arrays, composites, ranges and multiranges from Postgres' text format to JSON text.

A *fragment* is a function from the text of one value to its JSON text. Fragments of composed types are made of the
fragments of their parts, and raise ValueError for text in another format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import orjson

Fragment = Callable[[str], str]

EMPTY_RANGE = "empty"

_BOUNDS_OF_INDEX = re.compile(r"(?:\[-?\d+:-?\d+\])+=")
_BACKSLASHED = re.compile(r"\\(.)", re.DOTALL)
_DOUBLED_OR_BACKSLASHED = re.compile(r'(?:"|\\)(.)', re.DOTALL)

_QUOTED = r'"[^"\\]*(?:(?:""|\\.)[^"\\]*)*"'
_FIELD = re.compile(rf'({_QUOTED}|[^",()\\]*)(,|\Z)', re.DOTALL)
_BOUND = rf"({_QUOTED}|[^\",()\[\]\\]*)"
_RANGE = re.compile(rf"([\[(]){_BOUND},{_BOUND}([\])])", re.DOTALL)


def quote(text: str) -> str:
    """Text as a JSON string."""
    return orjson.dumps(text).decode()


def array(element: Fragment, delimiter: str) -> Fragment:
    """`{1,NULL,"a b"}` with any number of dimensions; a prefix with the bounds of indexes is dropped."""
    quoted = r'"(?P<quoted>[^"\\]*(?:\\.[^"\\]*)*)"'
    token = re.compile(rf'{quoted}|(?P<plain>[^{{}}"\\{delimiter}]+)|(?P<mark>[{{}}{delimiter}])', re.DOTALL)

    def convert(text: str) -> str:
        if text[:1] == "[":
            text = _BOUNDS_OF_INDEX.sub("", text, count=1)
        inner = text[1:-1]
        if text[:1] != "{" or text[-1:] != "}" or len(text) == 1:
            raise ValueError("not an array")
        if not inner:
            return "[]"
        if _not_flat(inner):
            return "".join(_array_parts(token, text, element, delimiter))
        items = inner.split(delimiter)
        if "" in items:
            raise ValueError("not an array")
        return f"[{','.join(['null' if item == 'NULL' else element(item) for item in items])}]"

    return convert


def _not_flat(inner: str) -> bool:
    return '"' in inner or "{" in inner or "}" in inner or "\\" in inner


def _array_parts(token: re.Pattern[str], text: str, element: Fragment, delimiter: str) -> Iterator[str]:
    """The JSON text of an array literal, in pieces."""
    depth = at = 0
    value_next = True
    while at < len(text):
        match = token.match(text, at)
        if match is None or (at and not depth):
            raise ValueError("not an array")
        at = match.end()
        mark = match["mark"]
        if value_next != (mark is None or mark == "{"):
            raise ValueError("not an array")
        if mark is None:
            yield _array_element(match, element)
        elif mark == delimiter:
            yield ","
        else:
            depth += 1 if mark == "{" else -1
            yield "[" if mark == "{" else "]"
        value_next = mark in ("{", delimiter)
    if depth:
        raise ValueError("not an array")


def _array_element(match: re.Match[str], element: Fragment) -> str:
    plain = match["plain"]
    if plain is None:
        return element(_BACKSLASHED.sub(r"\1", match["quoted"]))
    return "null" if plain == "NULL" else element(plain)


def composite(attributes: Sequence[tuple[str, Fragment]]) -> Fragment:
    """`(1,"a b",)` as an object by attribute name."""
    names = [f"{quote(name)}:" for name, _ in attributes]
    fragments = [fragment for _, fragment in attributes]

    def convert(text: str) -> str:
        if text[:1] != "(" or text[-1:] != ")":
            raise ValueError("not a composite")
        if not names and text == "()":
            return "{}"
        parts = zip(names, fragments, _fields(text[1:-1]), strict=True)
        return f"{{{','.join([name + _optional(fragment, part) for name, fragment, part in parts])}}}"

    return convert


def _fields(inner: str) -> list[str]:
    if '"' not in inner and "\\" not in inner:
        return inner.split(",")
    fields: list[str] = []
    at = 0
    while True:
        match = _FIELD.match(inner, at)
        if match is None:
            raise ValueError("not a composite")
        fields.append(match[1])
        at = match.end()
        if not match[2]:
            return fields


def _optional(fragment: Fragment, part: str) -> str:
    """A field or bound. An empty text is null; in a quoted one, quotes are doubled or escaped by a backslash."""
    if not part:
        return "null"
    return fragment(_DOUBLED_OR_BACKSLASHED.sub(r"\1", part[1:-1]) if part[0] == '"' else part)


def range_of(bound: Fragment) -> Fragment:
    """`[1,10)` as an object; an empty range is the string `empty`, a missing bound null."""

    def convert(text: str) -> str:
        if text == EMPTY_RANGE:
            return f'"{EMPTY_RANGE}"'
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError("not a range")
        return _range_object(match, bound)

    return convert


def multirange_of(bound: Fragment) -> Fragment:
    """`{[1,2),[5,9)}` as an array of the objects of its ranges."""

    def convert(text: str) -> str:
        if text[:1] != "{" or text[-1:] != "}":
            raise ValueError("not a multirange")
        return f"[{','.join(_ranges(text, bound))}]"

    return convert


def _ranges(text: str, bound: Fragment) -> Iterator[str]:
    at, end = 1, len(text) - 1
    while at < end:
        match = _RANGE.match(text, at, end)
        if match is None or text[match.end()] not in ",}":
            raise ValueError("not a multirange")
        yield _range_object(match, bound)
        at = match.end() + 1


def _range_object(match: re.Match[str], bound: Fragment) -> str:
    opening, lower, upper, closing = match.groups()
    return (
        f'{{"lower":{_optional(bound, lower)},"upper":{_optional(bound, upper)},'
        f'"lower_exclusive":{int(opening == "(")},"upper_exclusive":{int(closing == ")")}}}'
    )
