"""`headwater rules preview`: what a user would get under a sync config that is not deployed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import click
import msgspec

from headwater.cli.config import ServiceConfig
from headwater.cli.existing_store import existing_store
from headwater.cli.progress import scan_progress
from headwater.cli.rules.sync_config import compile_rules, read_text
from headwater.insight.preview import Preview, preview
from headwater.insight.rows import CurrentRows
from headwater.insight.words import count, size
from headwater.storage.open import open_store
from headwater_rules.results import SyncRequest

_SHOWN_BUCKETS = 50
_SHOWN = 160  # characters of a row or a lookup value on a terminal


def show_preview(
    config: ServiceConfig, file: Path, request: SyncRequest, *, sources: Sequence[str] = (), rows: int, as_json: bool
) -> None:
    """Print buckets, reasons, and the first `rows` rows of each bucket, of these sources or of all. Raises
    WrongRulesError."""
    config.chosen(sources)  # raises for an unknown one
    plan = compile_rules(read_text(file), str(file), as_json=as_json).plan
    with existing_store(config) as store, closing(open_store(store.address).open_reader()) as reader:
        current = CurrentRows(store, config.sources, scan_progress, sources)
        found = preview(current, reader, plan, request, config.api.parameters.requests, shown=rows)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
        return
    for line in _lines(found, rows, several=len(config.sources) > 1):
        click.echo(line)
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)


def _lines(found: Preview, shown: int, *, several: bool) -> Iterator[str]:
    rows = sum(bucket.rows for bucket in found.buckets)
    total = sum(bucket.size for bucket in found.buckets)
    yield f"{found.user} gets {count(len(found.buckets), 'bucket')} with {count(rows, 'row')}, {size(total)}"
    for bucket in found.buckets[:_SHOWN_BUCKETS]:
        why = ", ".join(f"{reason['stream']} ({reason['by']})" for reason in bucket.reasons)
        amount = f"{count(bucket.rows, 'row')}, {size(bucket.size)}"
        yield f"\n{bucket.name}  priority {bucket.priority}, stream {why}: {amount}"
        for row in bucket.first:
            source = f"  source {row.source}" if several else ""
            yield f"  {row.table}  {row.id}{source}  {_cropped(bytes(row.data).decode())}"
        if bucket.rows > len(bucket.first):
            yield f"  … {bucket.rows - len(bucket.first):,} more"
    if len(found.buckets) > _SHOWN_BUCKETS:
        yield f"\n… {count(len(found.buckets) - _SHOWN_BUCKETS, 'more bucket')}; --json lists them all"
    if found.lookups:
        yield "\nlookups"
    for key, outputs in found.lookups.items():
        values = "  ".join(bytes(each).decode() for each in outputs[:shown]) + (
            f"  … {len(outputs) - shown:,} more" if len(outputs) > shown else ""
        )
        yield f"  {_cropped(key)}: {_cropped(values) if outputs else 'nothing'}"
    for table in found.missing_tables:
        yield f"\nthe store has no rows of {table}: they are missing from this preview"


def _cropped(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
