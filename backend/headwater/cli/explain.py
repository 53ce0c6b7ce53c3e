"""`headwater explain`: which rows a user's devices are sent, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import orjson

from headwater.cli.options import config_options, examples, load, request_options, sources_option, to_json
from headwater.config import ConfigSource
from headwater.insight.words import count, size
from headwater_rules.results import SyncRequest

if TYPE_CHECKING:
    from headwater.insight.explain import RowExplained, UserExplained, UsersBucket


@click.group()
def explain() -> None:
    """Explain what a user's devices are sent now, and why."""


@explain.command("user", epilog=examples("headwater explain user u1",
                                          """headwater explain user u1 --claims '{"org": "o1"}' --json"""))  # fmt: skip
@click.argument("user")
@config_options
@request_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def user_(configs: ConfigSource, request: SyncRequest, as_json: bool) -> None:
    """Show the buckets that USER's devices are sent, with their rows and reasons, and why other streams give nothing.

    Shows what the service sends, at the newest checkpoint. For a sync config that is not deployed, see
    `headwater rules preview`.
    """
    from headwater.cli.existing_store import existing_store
    from headwater.insight.explain import explain_user
    from headwater.storage.open import open_store

    config = load(configs, warn=False)
    with existing_store(config), closing(open_store(config.storage).open_reader()) as reader:
        found = explain_user(reader, request, config.api.parameters.requests)
    click.echo(to_json(asdict(found)) if as_json else "\n".join(_user(found)))


@explain.command("row", epilog=examples("headwater explain row u1 todos 4711",
                                         "headwater explain row u1 public.todos 4711 --json"))  # fmt: skip
@click.argument("user")
@config_options
@sources_option
@request_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.argument("table")
@click.argument("row_id", metavar="ID")
def row_(
    configs: ConfigSource, sources: tuple[str, ...], request: SyncRequest, table: str, row_id: str, as_json: bool
) -> None:
    """Explain whether USER's devices have the row ID of TABLE, and why.

    If they do, it shows the stream, its values, the op and the commit. If not, it shows the condition that fails. TABLE
    and ID are those on devices, or those in a source if TABLE has a schema (and a tag). The exit code is 1 when they
    don't have the row.
    """
    from headwater.cli.existing_store import existing_store
    from headwater.cli.progress import scan_progress
    from headwater.insight.explain import explain_row
    from headwater.insight.rows import CurrentRows
    from headwater.storage.open import open_store

    config = load(configs, warn=False)
    config.chosen(sources)  # raises for an unknown one
    with existing_store(config) as store, closing(open_store(config.storage).open_reader()) as reader:
        current = CurrentRows(store, config.sources, scan_progress, sources)
        found = explain_row(reader, current, request, table, row_id, config.api.parameters.requests)
    click.echo(to_json(asdict(found)) if as_json else "\n".join(_row(found, several=len(config.sources) > 1)))
    sys.exit(0 if found.included else 1)


_SHOWN_BUCKETS = 50


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
    amount = f"{_rows(bucket.rows)}, {size(bucket.size)} in {count(bucket.ops, 'op')}"
    yield f"{bucket.name}  priority {bucket.priority}, stream {why}{values}: {amount}"


def _rows(number: int | None) -> str:
    return "too many rows to count" if number is None else count(number, "row")


def _row(found: RowExplained, *, several: bool) -> Iterator[str]:
    from headwater.cli.existing_store import when

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
            reason = "gives it" if query.given else query.because
            source = f", source {row.source}" if several else ""
            yield f"  row {row.id} of {row.table}{source}, stream {query.stream}: {reason}"
    for note in found.notes:
        yield f"note: {note}"
