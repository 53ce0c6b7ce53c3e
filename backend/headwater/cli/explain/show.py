"""Prints the answers of `headwater explain`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict

import click
import orjson

from headwater.cli.existing_store import existing_store, when
from headwater.cli.rules.scan_progress import ScanProgress
from headwater.cli.rules.sync_config import to_json
from headwater.config.model import ServiceConfig
from headwater.insight.explain_row import RowExplained, explain_row
from headwater.insight.explain_user import UserExplained, UsersBucket, explain_user
from headwater.insight.rows import CurrentRows
from headwater.insight.served import Limits
from headwater.insight.words import count, size
from headwater.storage.open import open_backend
from headwater_rules.results import SyncRequest

_SHOWN_BUCKETS = 50


def show_user(config: ServiceConfig, request: SyncRequest, *, as_json: bool) -> None:
    """Show what a user is sent."""
    with existing_store(config), closing(open_backend(config.storage).open_reader()) as reader:
        found = explain_user(reader, request, _limits(config))
    click.echo(to_json(asdict(found)) if as_json else "\n".join(_user(found)))


def show_row(config: ServiceConfig, request: SyncRequest, table: str, row_id: str, *, as_json: bool) -> None:
    """Show whether a user is sent a row. Ends the process with exit code 1 when not."""
    with existing_store(config) as store, closing(open_backend(config.storage).open_reader()) as reader:
        current = CurrentRows(store, config.source(), ScanProgress)
        found = explain_row(reader, current, request, table, row_id, _limits(config))
    click.echo(to_json(asdict(found)) if as_json else "\n".join(_row(found)))
    sys.exit(0 if found.included else 1)


def _limits(config: ServiceConfig) -> Limits:
    return Limits(config.api.max_buckets_per_connection, config.api.max_parameter_query_results)


def _user(found: UserExplained) -> Iterator[str]:
    total = f"{_rows(found.rows)}, {size(found.size)} in {count(found.ops, 'op')}"
    yield f"{found.user} gets {count(len(found.buckets), 'bucket')} with {total} (version {found.version})"
    for bucket in found.buckets[:_SHOWN_BUCKETS]:
        yield from _bucket(bucket)
    if len(found.buckets) > _SHOWN_BUCKETS:
        yield f"… {count(len(found.buckets) - _SHOWN_BUCKETS, 'more bucket')}; --json lists them all"
    for stream in found.streams:
        for error in stream.errors:
            yield f"stream {stream.name}: {error}"
        if stream.empty_because:
            yield f"stream {stream.name} gives nothing: {'; '.join(stream.empty_because)}"


def _bucket(bucket: UsersBucket) -> Iterator[str]:
    why = ", ".join(f"{reason.stream} ({reason.by})" for reason in bucket.reasons)
    values = "".join(f", {words} = {orjson.dumps(value).decode()}" for words, value in bucket.values.items())
    told = f"{_rows(bucket.rows)}, {size(bucket.size)} in {count(bucket.ops, 'op')}"
    yield f"{bucket.name}  priority {bucket.priority}, stream {why}{values}: {told}"


def _rows(number: int | None) -> str:
    return "too many rows to count" if number is None else count(number, "row")


def _row(found: RowExplained) -> Iterator[str]:
    verb = "gets" if found.included else "does not get"
    yield f"{found.user} {verb} row {found.id} of {found.table}: {found.because}"
    for place in found.places:
        why = ", ".join(f"{reason.stream} ({reason.by})" for reason in place.reasons)
        values = ", ".join(f"{words} = {orjson.dumps(value).decode()}" for words, value in place.values.items())
        commit = f", commit {place.lsn} of {place.source}" if place.lsn is not None else ""
        at = f" at {when(place.committed)}" if place.committed is not None else ""
        yield f"  {place.bucket}  stream {why}{f' by {values}' if values else ''}: op {place.op_id}{commit}{at}"
    for row in found.rows:
        for query in row.queries:
            told = "gives it" if query.given else query.because
            yield f"  row {row.id} of {row.table}, stream {query.stream}: {told}"
    for note in found.notes:
        yield f"note: {note}"
