"""Explains a config: for each stream, who gets which rows and how; for each table, the effects of a change."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headwater_rules.describe.wording import columns_of, compared_words, joined_words, request_words, row_words
from headwater_rules.evaluate.limits import MOST_BUCKETS, MOST_RESULTS
from headwater_rules.plan import (
    Expr,
    FromRequest,
    FromStage,
    LookupStage,
    Output,
    ParamSource,
    RequestStage,
    RowSource,
    Star,
    Stream,
    SyncPlan,
    TablePattern,
    Variant,
    joined_lookups,
)

_VALUE = re.compile(r"\b(?:auth|connection|subscription)\.[a-z_]+\((?:'(?:[^']|'')*')?\)")


@dataclass(frozen=True, slots=True)
class RequestStep:
    """A step of a request. It finds rows of `table` that pass `filters` and whose `keys` (column, value) match, and
    takes `outputs`. Without a table, the rows are the elements of the request's `arrays`."""

    table: str | None
    arrays: tuple[str, ...]
    filters: tuple[str, ...]
    keys: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SentRows:
    """The rows of one query: those of `table` that pass `filters`, sent as `output_table` with `columns`. `parameters`
    are the row's values that determine its bucket, and the sources of the matching values of a request."""

    table: str
    output_table: str | None
    filters: tuple[str, ...]
    columns: tuple[str, ...]
    parameters: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class BucketPath:
    """One way from a request to buckets. `limits` are those that a device with much data can reach."""

    buckets: tuple[str, ...]
    priority: int
    gates: tuple[str, ...]
    steps: tuple[RequestStep, ...]
    rows: tuple[SentRows, ...]
    limits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StreamWords:
    """A stream or bucket definition. `reads` are the request values that it depends on."""

    name: str
    default: bool
    priority: int
    reads: tuple[str, ...]
    ways: tuple[BucketPath, ...]


@dataclass(frozen=True, slots=True)
class TableWords:
    """The effects of a change of a row. `moves` (column, streams): rows enter, leave or change buckets. `rights`:
    requests get other buckets. `sent`: streams that send the row to devices."""

    name: str
    moves: tuple[tuple[str, tuple[str, ...]], ...]
    rights: tuple[tuple[str, tuple[str, ...]], ...]
    sent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Streams and tables, in the order of the config."""

    streams: tuple[StreamWords, ...]
    tables: tuple[TableWords, ...]


def explain(plan: SyncPlan) -> Explanation:
    """Explain a plan, with the default limits of the service."""
    streams = tuple(_stream(plan, stream) for stream in plan.streams)
    return Explanation(streams, tuple(_table(plan, pattern) for pattern in plan.tables()))


def _stream(plan: SyncPlan, stream: Stream) -> StreamWords:
    ways = tuple(_way(plan, stream, variant) for variant in stream.variants)
    return StreamWords(stream.name, stream.auto_subscribe, stream.priority, tuple(_reads(plan, stream)), ways)


def _reads(plan: SyncPlan, stream: Stream) -> list[str]:
    words: list[str] = []
    for variant in stream.variants:
        words += map(request_words, variant.gates)
        words += _from_request(source for sources in variant.params for source in sources)
        for stage in variant.stages:
            if isinstance(stage, LookupStage):
                words += _from_request(stage.keys)
                words += (compared_words(plan, variant, each) for each in stage.filters)
            else:
                words += map(request_words, stage.arrays)
                words += (request_words(each, stage.arrays) for each in (*stage.filters, *stage.outputs))
    return list(dict.fromkeys(found for text in words for found in _VALUE.findall(text)))


def _from_request(sources: Iterable[ParamSource]) -> Iterator[str]:
    return (request_words(source.expr) for source in sources if isinstance(source, FromRequest))


def _way(plan: SyncPlan, stream: Stream, variant: Variant) -> BucketPath:
    steps = tuple(_step(plan, variant, stage) for stage in variant.stages)
    definitions = [plan.buckets[number] for number in variant.buckets]
    rows = tuple(_rows(plan, variant, source) for each in definitions for source in each.sources)
    return BucketPath(
        tuple(each.name for each in definitions),
        stream.priority if variant.priority is None else variant.priority,
        tuple(request_words(gate) for gate in variant.gates),
        steps,
        rows,
        tuple(_limits(variant, steps)),
    )


def _step(plan: SyncPlan, variant: Variant, stage: LookupStage | RequestStage) -> RequestStep:
    if isinstance(stage, RequestStage):
        arrays = tuple(request_words(array) for array in stage.arrays)
        filters = tuple(request_words(each, stage.arrays) for each in stage.filters)
        outputs = tuple(request_words(each, stage.arrays) for each in stage.outputs)
        return RequestStep(None, arrays, filters, (), outputs)
    lookup, joined = plan.lookups[stage.lookup], joined_words(plan)
    keys = zip(lookup.keys, stage.keys, strict=True)
    return RequestStep(
        _name(lookup.table),
        (),
        (
            *(row_words(each, lookup.each, joined) for each in lookup.filters),
            *(compared_words(plan, variant, each) for each in stage.filters),
        ),
        tuple((row_words(key, lookup.each), _source(plan, variant, source)) for key, source in keys),
        tuple(row_words(each, lookup.each) for each in lookup.outputs),
    )


def _rows(plan: SyncPlan, variant: Variant, source: RowSource) -> SentRows:
    parameters, joined = zip(source.params, variant.params, strict=True), joined_words(plan)
    return SentRows(
        _name(source.table),
        source.output_table,
        tuple(row_words(each, source.each, joined) for each in source.filters),
        tuple("*" if isinstance(item, Star) else _column(item, source.each, joined) for item in source.projection),
        tuple(
            (row_words(param, source.each), tuple(_source(plan, variant, each) for each in sources))
            for param, sources in parameters
        ),
    )


def _column(item: Output, arrays: Sequence[Expr], joined: Mapping[str, str]) -> str:
    words = row_words(item.expr, arrays, joined)
    return words if words.strip('"') == item.name else f"{words} AS {item.name}"


def _source(plan: SyncPlan, variant: Variant, source: ParamSource) -> str:
    if isinstance(source, FromRequest):
        return f"each({request_words(source.expr)})" if source.each else request_words(source.expr)
    found = variant.stages[source.stage]
    if isinstance(found, RequestStage):
        return request_words(found.outputs[source.output], found.arrays)
    lookup = plan.lookups[found.lookup]
    return f"{row_words(lookup.outputs[source.output], lookup.each)} of {_name(lookup.table)} (step {source.stage + 1})"


def _limits(variant: Variant, steps: Sequence[RequestStep]) -> Iterable[str]:
    if any(all(isinstance(each, FromStage) or each.each for each in sources) for sources in variant.params):
        yield f"a device gets at most {MOST_BUCKETS:,} buckets, of all its streams together"
    if any(step.table for step in steps):
        yield f"each step finds at most {MOST_RESULTS:,} rows for a request"
    for step in steps:
        if step.table and not step.keys:
            yield f"every row of {step.table} that passes is read for each request: it is not connected to the request"


# effects of changes


def _table(plan: SyncPlan, pattern: TablePattern) -> TableWords:
    moves: dict[str, dict[str, None]] = {}
    rights: dict[str, dict[str, None]] = {}
    sent: dict[str, None] = {}
    for name, variant in [(stream.name, variant) for stream in plan.streams for variant in stream.variants]:
        for source in [source for number in variant.buckets for source in plan.buckets[number].sources]:
            if source.table == pattern:
                sent[name] = None
                for column in columns_of(source.deciding()):
                    moves.setdefault(column, {})[name] = None
            for lookup in joined_lookups(plan, (*source.deciding(), *source.selected())):
                for column in columns_of(lookup.exprs()) if lookup.table == pattern else ():
                    moves.setdefault(column, {})[name] = None
        for lookup in [plan.lookups[number] for number in variant.lookups()]:
            if lookup.table == pattern:
                for column in columns_of(lookup.exprs()) or ["*"]:
                    rights.setdefault(column, {})[name] = None
    return TableWords(_name(pattern), _frozen(moves), _frozen(rights), tuple(sent))


def _frozen(found: dict[str, dict[str, None]]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((column, tuple(streams)) for column, streams in found.items())


def _name(pattern: TablePattern) -> str:
    return pattern.written.removeprefix("public.")


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
        yield from _stream_lines(stream, width)
        yield ""
    for table in explanation.tables:
        yield from _table_lines(table, width)
        yield ""
    yield from textwrap.wrap(POSTGRES, width)


def _stream_lines(stream: StreamWords, width: int) -> Iterator[str]:
    who = "everybody gets it by default" if stream.default else "clients subscribe to it"
    yield f"stream {stream.name}: priority {stream.priority}, {who}"
    reads = ", ".join(stream.reads) or "nothing of the request: the same for everybody"
    yield from _labelled("reads", [reads], width, indent=2)
    for number, way in enumerate(stream.ways, 1):
        if len(stream.ways) > 1:
            own = "" if way.priority == stream.priority else f", priority {way.priority}"
            yield f"  way {number} of {len(stream.ways)}{own}"
        yield from _way_lines(way, width)


def _way_lines(way: BucketPath, width: int) -> Iterator[str]:
    yield from _labelled("only if", way.gates, width)
    for number, step in enumerate(way.steps, 1):
        yield from _labelled(f"step {number}", [_step_text(step)], width)
    for rows in way.rows:
        yield from _labelled("sends", [_rows_text(rows)], width)
    buckets = [f"{name}[{', '.join(param for param, _ in way.rows[0].parameters)}]" for name in way.buckets]
    yield from _labelled("bucket", buckets, width)
    yield from _labelled("limits", way.limits, width)


def _step_text(step: RequestStep) -> str:
    conditions = [f"{key} = {value}" for key, value in step.keys] + list(step.filters)
    taken = f"; take {', '.join(step.outputs)}" if step.outputs else "; there has to be one"
    if step.table is None:
        return f"elements of {', '.join(step.arrays)}{_where(conditions)}{taken}"
    return f"look up {step.table}{_where(conditions)}{taken}"


def _rows_text(rows: SentRows) -> str:
    name = "the table's own name" if rows.output_table is None else rows.output_table
    called = "" if rows.output_table == rows.table else f" as {name}"
    parameters = [f"{param} = {' and = '.join(sources)}" for param, sources in rows.parameters]
    return f"{', '.join(rows.columns)} of {rows.table}{called}{_where([*parameters, *rows.filters])}"


def _where(conditions: Sequence[str]) -> str:
    return f" where {' and '.join(conditions)}" if conditions else ""


def _table_lines(table: TableWords, width: int) -> Iterator[str]:
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
    rest = "any other column does nothing: no row of it is sent"
    if table.sent:
        what = "any other column that is selected" if effects else "any column that is selected"
        rest = f"{what} is sent to the devices that have the row ({', '.join(table.sent)})"
    yield from _labelled("", [rest], width, indent=2)


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
