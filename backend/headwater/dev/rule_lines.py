"""Finds the lines of the demo's sync config that give a bucket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.explain import Rows, StreamWords, Way, explain


@dataclass(frozen=True, slots=True)
class RuleLines:
    """The lines `first` to `last` of a stream, counted from 1, and `giving`, those of its query that give a bucket."""

    first: int
    last: int
    giving: tuple[int, ...]


class RuleText:
    """The text of a sync config. The lines come from what its plan compares, so that they say what really decides."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines()
        self._streams = {stream.name: stream for stream in explain(compile_config(text).plan).streams}
        read = YAML().load(text)
        streams = read.get("streams") or read["bucket_definitions"]
        self._first = {name: streams.lc.key(name)[0] + 1 for name in self._streams}
        self._query = {name: _place(streams[name], "query", self._first[name]) for name in self._streams}

    def of_bucket(self, stream: str, bucket: str) -> RuleLines:
        """The lines of a stream that give one of its buckets."""
        first, last = self._first[stream], self._last(stream)
        query = range(self._query[stream], last + 1)
        way = _way(self._streams[stream], bucket.partition("[")[0])
        giving = tuple(number for number in query if self._compares(self._lines[number - 1], way))
        return RuleLines(first, last, giving or tuple(query))

    def _last(self, stream: str) -> int:
        """The last line of a stream: what follows is empty, a comment, or the next stream."""
        after = [line for line in self._first.values() if line > self._first[stream]]
        last = min(after, default=len(self._lines) + 1) - 1
        while not self._lines[last - 1].strip() or self._lines[last - 1].lstrip().startswith("#"):
            last -= 1
        return last

    def _compares(self, line: str, way: Way) -> bool:
        return any(
            _has_word(line, row) and any(_has_word(line, value) for value in values)
            for rows in way.rows
            for row, values in _compared(rows, way)
        )


def _place(stream: CommentedMap, key: str, otherwise: int) -> int:
    """The line of a key, counted from 1."""
    return stream.lc.key(key)[0] + 1 if key in stream else otherwise


def _way(stream: StreamWords, definition: str) -> Way:
    return next(way for way in stream.ways if definition in way.buckets)


def _compared(rows: Rows, way: Way) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is compared of a row, with words for what it is compared with: a value of the request, or a looked-up
    table."""
    tables = tuple(step.table.rpartition(".")[2] for step in way.steps if step.table)
    for row, sources in rows.parameters:
        yield row, tuple(source for source in sources if "(step " not in source) or tables


def _has_word(line: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", line) is not None
