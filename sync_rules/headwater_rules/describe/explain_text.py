"""Prints an explanation of a config for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from headwater_rules.describe.explain import Explanation, Rows, Step, StreamWords, TableWords, Way

_LABEL = 9  # characters before the words
_LONGEST_COLUMN = 24
POSTGRES = (
    "Postgres: whole tables are read by COPY, for the first snapshot and for comparisons, and single rows by their "
    "replica identity, where the stream leaves a large value out. No other index of the source makes Headwater faster, "
    "whatever the config says; requests are answered from Headwater's own store."
)


def explanation_lines(explanation: Explanation, width: int) -> Iterator[str]:
    """The explanation in lines of at most `width` characters where words allow it."""
    for stream in explanation.streams:
        yield from _stream(stream, width)
        yield ""
    for table in explanation.tables:
        yield from _table(table, width)
        yield ""
    yield from textwrap.wrap(POSTGRES, width)


def _stream(stream: StreamWords, width: int) -> Iterator[str]:
    who = "everybody gets it by default" if stream.default else "clients subscribe to it"
    yield f"stream {stream.name}: priority {stream.priority}, {who}"
    if stream.reads:
        yield from _labelled("reads", [", ".join(stream.reads)], width, indent=2)
    else:
        yield from _labelled("reads", ["nothing of the request: the same for everybody"], width, indent=2)
    for number, way in enumerate(stream.ways, 1):
        if len(stream.ways) > 1:
            own = "" if way.priority == stream.priority else f", priority {way.priority}"
            yield f"  way {number} of {len(stream.ways)}{own}"
        yield from _way(way, width)


def _way(way: Way, width: int) -> Iterator[str]:
    yield from _labelled("only if", way.gates, width)
    for number, step in enumerate(way.steps, 1):
        yield from _labelled(f"step {number}", [_step(step)], width)
    for rows in way.rows:
        yield from _labelled("sends", [_rows(rows)], width)
    buckets = [f"{name}[{', '.join(param for param, _ in way.rows[0].parameters)}]" for name in way.buckets]
    yield from _labelled("bucket", buckets, width)
    yield from _labelled("limits", way.limits, width)


def _step(step: Step) -> str:
    conditions = [f"{key} = {value}" for key, value in step.keys] + list(step.filters)
    taken = f"; take {', '.join(step.outputs)}" if step.outputs else "; there has to be one"
    if step.table is None:
        return f"elements of {', '.join(step.arrays)}{_where(conditions)}{taken}"
    return f"look up {step.table}{_where(conditions)}{taken}"


def _rows(rows: Rows) -> str:
    name = "the table's own name" if rows.output_table is None else rows.output_table
    called = "" if rows.output_table == rows.table else f" as {name}"
    parameters = [f"{param} = {' and = '.join(sources)}" for param, sources in rows.parameters]
    return f"{', '.join(rows.columns)} of {rows.table}{called}{_where([*parameters, *rows.filters])}"


def _where(conditions: Sequence[str]) -> str:
    return f" where {' and '.join(conditions)}" if conditions else ""


def _table(table: TableWords, width: int) -> Iterator[str]:
    yield f"table {table.name}: a change of"
    effects: dict[str, list[str]] = {}
    for column, streams in table.rights:
        effects.setdefault(column, []).append(f"changes who has which buckets of {', '.join(streams)}")
    for column, streams in table.moves:
        effects.setdefault(column, []).append(f"moves rows into, out of and between buckets of {', '.join(streams)}")
    longest = min(max(map(len, effects), default=0), _LONGEST_COLUMN)
    for column, words in effects.items():
        shown = "any row" if column == "*" else column
        yield from _labelled(shown.ljust(longest), ["; ".join(words)], width, indent=2)
    if table.sent:
        what = "any other column that is selected" if effects else "any column that is selected"
        yield from _labelled(
            "", [f"{what} is sent to the devices that have the row ({', '.join(table.sent)})"], width, 2
        )
    else:
        yield from _labelled("", ["any other column does nothing: no row of it is sent"], width, 2)


def _labelled(label: str, texts: Iterable[str], width: int, indent: int = 4) -> Iterator[str]:
    """Texts below each other, next to a label."""
    for text in texts:
        space = max(_LABEL, len(label) + 2) if label else 0
        start = " " * indent + label.ljust(space)
        rest = " " * (indent + (space or 2))
        wrapped = textwrap.wrap(
            text, max(width, 40), initial_indent=start, subsequent_indent=rest, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        yield from wrapped or [start.rstrip()]
        label = " " * len(label)
