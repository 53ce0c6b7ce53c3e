"""`headwater rules preview`: what a user would get under a sync config that nobody has deployed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
import orjson

from headwater.cli.rules.lookups import LookupScan
from headwater.cli.rules.rows import CurrentRows, ScanProgress, op_size
from headwater.cli.rules.store import existing_store
from headwater.cli.rules.sync_config import compile_rules, read_rules, to_json
from headwater.cli.rules.words import count, size
from headwater.config import ServiceConfig
from headwater.storage.open import open_backend
from headwater_rules.errors import did_you_mean
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import Expr, FromRequest, RequestInput, RequestStage, Stream, SyncPlan
from headwater_rules.results import Put, Resolution, ResolvedBucket, SyncRequest
from headwater_rules.versions import only

_PAGE = 50_000
_SHOWN_BUCKETS = 50
_SHOWN = 160  # characters of a row or a lookup value on a terminal


@dataclass
class BucketRows:
    """What stands in one bucket: how much, and the first rows of it."""

    rows: int = 0
    size: int = 0
    first: list[Put] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Preview:
    """The answer to a request. `buckets` pairs each with its rows; `lookups` are the keys asked for and what was
    found."""

    request: SyncRequest
    resolution: Resolution
    buckets: tuple[tuple[ResolvedBucket, BucketRows], ...]
    lookups: Mapping[str, Sequence[str]]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]


def show_preview(config: ServiceConfig, file: Path, request: SyncRequest, *, rows: int, as_json: bool) -> None:
    """Show buckets, reasons, and the first `rows` rows of each bucket. Raises WrongRules."""
    plan = compile_rules(read_rules(file), str(file), as_json=as_json).plan
    preview = _preview(config, plan, request, rows)
    if as_json:
        click.echo(to_json(_as_dict(preview)))
        return
    for line in _lines(preview, rows):
        click.echo(line)
    for warning in preview.warnings:
        click.echo(f"warning: {warning}", err=True)


def _preview(config: ServiceConfig, plan: SyncPlan, request: SyncRequest, shown: int) -> Preview:
    with existing_store(config) as store:
        reader = open_backend(store.address).open_reader()
        try:
            current = CurrentRows(store, config.source())
            lookups = LookupScan(current, plan, store.complete_sides(), reader)
            resolution = resolve(
                plan,
                request,
                lookups,
                max_buckets=config.api.max_buckets_per_connection,
                max_results=config.api.max_parameter_query_results,
            )
            buckets = _bucket_rows(current, plan, resolution, shown)
            return Preview(
                request,
                resolution,
                tuple((bucket, buckets[bucket.name]) for bucket in resolution.buckets),
                lookups.answers,
                tuple(current.missing(plan)),
                (*_request_warnings(plan, request), *_failures(resolution, request), *current.notes),
            )
        finally:
            reader.close()


def _bucket_rows(current: CurrentRows, plan: SyncPlan, resolution: Resolution, shown: int) -> dict[str, BucketRows]:
    found = {bucket.name: BucketRows() for bucket in resolution.buckets}
    used = only(plan, {plan.buckets[bucket.definition].name for bucket in resolution.buckets})
    pages = [current.pages(table, _PAGE) for table in current.tables(used)]
    failed: dict[str, int] = {}
    with ScanProgress("rows", sum(len(each.ranges) for each in pages)) as progress:
        for each in pages:
            for row_id, result in current.results(used, each, progress):
                for put in result.puts:
                    bucket = found.get(put.bucket)
                    if bucket is None:
                        continue
                    bucket.rows += 1
                    bucket.size += op_size(put, each.table, row_id)
                    if len(bucket.first) < shown:
                        bucket.first.append(put)
                for error in result.errors:
                    failed[error] = failed.get(error, 0) + 1
    current.notes += [f"{error}: left out of {count(number, 'row')}" for error, number in failed.items()]
    return found


# what the request has wrong with it


def _request_warnings(plan: SyncPlan, request: SyncRequest) -> Iterator[str]:
    streams = {stream.name: stream for stream in plan.streams}
    for subscription in request.subscriptions:
        stream = streams.get(subscription.stream)
        if stream is None:
            hint = did_you_mean(subscription.stream, streams)
            yield f"the rules have no stream {subscription.stream}{f'; {hint}' if hint else ''}"
            continue
        given = set(subscription.parameters or ())
        for name in _unused(given, [stream], RequestInput.SUBSCRIPTION):
            yield f"stream {stream.name} does not use the subscription's parameter {name}"
    for name in _unused(set(request.parameters or ()), plan.streams, RequestInput.CONNECTION):
        yield f"no stream uses the client parameter {name}"


def _unused(given: set[str], streams: Sequence[Stream], source: RequestInput) -> list[str]:
    """The names among `given` that no expression reads from `source`: a path begins with a key in double quotes. An
    expression that takes the whole object uses every name."""
    texts = [expr.sql for stream in streams for expr in _exprs(stream) if source.value in expr.inputs]
    if any("->" not in text for text in texts):
        return []
    keys = {name: f'$."{orjson.dumps(name).decode()[1:-1]}"'.replace("'", "''") for name in given}
    return sorted(name for name, key in keys.items() if not any(key in text for text in texts))


def _exprs(stream: Stream) -> Iterator[Expr]:
    for variant in stream.variants:
        yield from variant.gates
        sources = [source for group in variant.params for source in group]
        for stage in variant.stages:
            if isinstance(stage, RequestStage):
                yield from (*stage.arrays, *stage.filters, *stage.outputs)
            else:
                sources += stage.keys
        yield from (source.expr for source in sources if isinstance(source, FromRequest))


def _failures(resolution: Resolution, request: SyncRequest) -> Iterator[str]:
    for status in resolution.streams:
        for error in status.errors:
            who = error["subscription"]
            entry = "" if who == "default" else f", subscription {request.subscriptions[int(str(who))].stream}"
            yield f"stream {status.name}{entry}: {error['message']}"


# how it is shown


def _reasons(preview: Preview, bucket: ResolvedBucket) -> list[dict[str, object]]:
    reasons: list[dict[str, object]] = []
    for reason in bucket.reasons:
        if "default" in reason:
            stream = preview.resolution.streams[reason["default"]].name
            reasons.append({"stream": stream, "by": "default"})
        else:
            number = reason["sub"]
            stream = preview.request.subscriptions[number].stream
            reasons.append({"stream": stream, "by": "subscription", "subscription": number})
    return reasons


def _lines(preview: Preview, shown: int) -> Iterator[str]:
    rows = sum(found.rows for _, found in preview.buckets)
    total = sum(found.size for _, found in preview.buckets)
    user = preview.request.claims["sub"]
    yield f"{user} gets {count(len(preview.buckets), 'bucket')} with {count(rows, 'row')}, {size(total)}"
    for bucket, found in preview.buckets[:_SHOWN_BUCKETS]:
        why = ", ".join(f"{reason['stream']} ({reason['by']})" for reason in _reasons(preview, bucket))
        told = f"{count(found.rows, 'row')}, {size(found.size)}"
        yield f"\n{bucket.name}  priority {bucket.priority}, stream {why}: {told}"
        for put in found.first:
            yield f"  {put.table}  {put.id}  {_cropped(put.data)}"
        if found.rows > len(found.first):
            yield f"  … {found.rows - len(found.first):,} more"
    if len(preview.buckets) > _SHOWN_BUCKETS:
        yield f"\n… {count(len(preview.buckets) - _SHOWN_BUCKETS, 'more bucket')}; --json lists them all"
    if preview.lookups:
        yield "\nlooked up"
    for key, outputs in preview.lookups.items():
        values = "  ".join(outputs[:shown]) + (f"  … {len(outputs) - shown:,} more" if len(outputs) > shown else "")
        yield f"  {_cropped(key)}: {_cropped(values) if outputs else 'nothing'}"
    for table in preview.missing:
        yield f"\nthe store has no rows of {table}: what they would give is missing here"


def _cropped(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _as_dict(preview: Preview) -> dict[str, object]:
    return {
        "user": preview.request.claims["sub"],
        "buckets": [
            {
                "name": bucket.name,
                "priority": bucket.priority,
                "reasons": _reasons(preview, bucket),
                "rows": found.rows,
                "size": found.size,
                "first": [{"table": put.table, "id": put.id, "data": orjson.loads(put.data)} for put in found.first],
            }
            for bucket, found in preview.buckets
        ],
        "streams": [status.name for status in preview.resolution.streams],
        "lookups": {key: [orjson.loads(output) for output in outputs] for key, outputs in preview.lookups.items()},
        "missing_tables": list(preview.missing),
        "warnings": list(preview.warnings),
    }
