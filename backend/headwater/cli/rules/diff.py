"""`headwater rules diff`: what a sync config would change, and what that costs devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import click

from headwater.api.plans import RequestLimits
from headwater.cli.rules.estimate import Estimate, estimates
from headwater.cli.rules.rows import CurrentRows
from headwater.cli.rules.source_schema import unsent
from headwater.cli.rules.store import existing_store, served, when
from headwater.cli.rules.sync_config import compile_rules, read_rules, to_json
from headwater.cli.rules.words import count, per_bucket, size
from headwater.config import ServiceConfig
from headwater.storage.contract.stats import DefinitionStats
from headwater.storage.open import open_backend
from headwater_rules.describe.per_row import BucketPerRow, buckets_per_row
from headwater_rules.errors import RuleError
from headwater_rules.plan import ConversionOptions, SyncPlan
from headwater_rules.versions import Change, Comparison, Kind, SideChange, StreamChange, compare

_NOTHING = SyncPlan((), (), (), ConversionOptions())


@dataclass(frozen=True, slots=True)
class Diff:
    """What `file` would change of `against`. `stored` is what the store has of definitions, by name; `estimates` what
    new ones would hold. `missing` are tables without rows in the store, `unsent` names those whose rows can't come,
    `per_row` what of `file` has buckets of one row each; `allowed` is how many buckets a device may have."""

    file: str
    against: str
    comparison: Comparison
    stored: dict[str, DefinitionStats] = field(default_factory=dict)
    estimates: dict[str, Estimate] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    per_row: tuple[BucketPerRow, ...] = ()
    allowed: int = RequestLimits().max_buckets
    unsent: tuple[RuleError, ...] = ()
    notes: tuple[str, ...] = ()


def show_diff(
    config: ServiceConfig | None, file: Path, against: Path | None, *, sample: int | None, as_json: bool
) -> None:
    """Compare `file` with another one or, without one, with the version that the store serves. Numbers come from the
    store of `config`; `sample` bounds the rows that are evaluated of each table, None for all of them."""
    text = read_rules(file)
    plan = compile_rules(text, str(file), as_json=as_json).plan
    other = None if against is None else compile_rules(read_rules(against), str(against), as_json=as_json).plan
    if other is not None and (config is None or not open_backend(config.storage).exists()):
        note = "without a store nothing can be said of rows and bytes"
        found = Diff(str(file), str(against), compare(other, plan), per_row=buckets_per_row(plan), notes=(note,))
    else:
        assert config is not None, "the command has loaded one"
        found = _with_store(config, file, plan, against, other, sample)
    if config is not None:
        told = unsent(config, text)
        found = replace(found, unsent=told.findings, notes=(*found.notes, *filter(None, [told.note])))
    if as_json:
        click.echo(to_json(_as_dict(found)))
        return
    for line in _lines(found):
        click.echo(line)
    for each in found.per_row:
        click.echo(f"warning: {_per_row(found, each)}", err=True)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)


def _with_store(
    config: ServiceConfig, file: Path, plan: SyncPlan, against: Path | None, other: SyncPlan | None, sample: int | None
) -> Diff:
    with existing_store(config) as store:
        name = str(against)
        if other is None:
            version = served(store.versions())
            name = "no version: none is served yet"
            other = _NOTHING
            if version is not None:
                name = f"version {version.id}, served since {when(version.activated or version.created)}"
                other = compile_rules(version.yaml, f"version {version.id}").plan
        comparison = compare(other, plan)
        rows = CurrentRows(store, config.source())
        new = {side.name for side in comparison.having(Change.ADDED, Change.CHANGED, kind=Kind.BUCKET)}
        return Diff(
            file=str(file),
            against=name,
            comparison=comparison,
            stored={stats.definition: stats for stats in open_backend(store.address).definition_stats()},
            estimates=estimates(rows, plan, new, sample),
            missing=tuple(rows.missing(plan)),
            per_row=buckets_per_row(plan),
            allowed=config.api.max_buckets_per_connection,
            notes=tuple(rows.notes),
        )


_HEADINGS = {
    Change.UNCHANGED: "unchanged: devices keep what they have",
    Change.CHANGED: "changed: devices download the new rows and drop the old ones",
    Change.ADDED: "added: devices that get them download them",
    Change.REMOVED: "removed: devices drop them",
}


def _lines(diff: Diff) -> Iterator[str]:
    yield f"{diff.file} against {diff.against}"
    if diff.comparison.same:
        yield "the same: devices download nothing"
    for change, heading in _HEADINGS.items():
        sides = diff.comparison.having(change, kind=Kind.BUCKET)
        if sides:
            yield f"\n{heading}"
        for side in sides:
            yield from _side(diff, side)
    yield from _lookups(diff.comparison)
    streams = [told for stream in diff.comparison.streams if (told := _stream(stream))]
    if streams:
        yield "\nstreams"
        yield from streams
    yield from _how(diff)


def _side(diff: Diff, side: SideChange) -> Iterator[str]:
    before = f"  (was {side.before})" if side.before else ""
    tables = ", ".join(f"{table.schema}.{table.name}" for table in side.tables)
    yield f"  {side.name}{before}  from {tables}"
    for name in (side.before, side.name):
        stats = diff.stored.get(name or "")
        if stats is not None and stats.buckets:
            now = f"{count(stats.buckets, 'bucket')} with {count(stats.ops, 'op')}, {size(stats.size)}"
            most = per_bucket("ops", stats.buckets, stats.ops, stats.size, stats.largest_ops, stats.largest_size)
            yield f"      {'now' if name == side.name else 'before'}: {now}; {most}"
    guess = diff.estimates.get(side.name)
    if guess is not None and not guess.tables:
        yield "      to download: unknown"
    elif guess is not None:
        about = "" if guess.exact else "about "
        rows = f"{about}{count(guess.rows, 'row')}, {size(guess.size)} in {about}{count(guess.buckets, 'bucket')}"
        most = per_bucket("rows", guess.buckets, guess.rows, guess.size, guess.largest_rows, guess.largest_size)
        yield f"      to download: {rows}; {most}"


def _lookups(comparison: Comparison) -> Iterator[str]:
    found = [(change, len(comparison.having(change, kind=Kind.LOOKUP))) for change in Change]
    told = ", ".join(f"{number} {change.value}" for change, number in found if number)
    if told:
        yield f"\nlookups: {told}; they are never downloaded"


def _stream(stream: StreamChange) -> str | None:
    if stream.change is Change.UNCHANGED:
        return None
    parts = {
        "its rows": stream.rows,
        "its lookups": stream.lookups,
        "who gets its buckets": stream.request,
        "its priority": stream.priority,
        "auto_subscribe": stream.auto_subscribe,
    }
    told = ", ".join(part for part, changed in parts.items() if changed)
    cost = "" if stream.rows or stream.change is not Change.CHANGED else "; no row is downloaded again for that"
    return f"  {stream.name}: {stream.change.value}{f' in {told}' if told else ''}{cost}"


def _how(diff: Diff) -> Iterator[str]:
    """Where the numbers come from."""
    sampled: dict[str, None] = {}
    for guess in diff.estimates.values():
        tables = ", ".join(guess.tables)
        if guess.tables and guess.exact:
            sampled[f"all {guess.rows_read:,} rows that the store has now of {tables}"] = None
        elif guess.tables:
            sampled[f"a sample of {guess.rows_read:,} of the rows that the store has now of {tables}"] = None
    if sampled:
        yield "\nwhat is to download is an estimate from " + "; from ".join(sampled)
    for table in diff.missing:
        yield f"the store has no rows of {table}: they are not counted, and the deploy has to read them from the source"
    for finding in diff.unsent:
        yield f"{finding.message}; {finding.suggestion}"


def _per_row(diff: Diff, found: BucketPerRow) -> str:
    buckets = _buckets(diff, found)
    guess = diff.estimates.get(found.definition)
    about = "" if guess is None or guess.exact else "about "
    there = "" if buckets is None else f": {about}{buckets:,} of them now"
    allowed = f"a device may have {diff.allowed:,} (api.parameters.max_buckets_per_connection)"
    return f"stream {found.stream} has one bucket for each row of {found.table}, by {found.value}{there}, and {allowed}"


def _buckets(diff: Diff, found: BucketPerRow) -> int | None:
    """How many there are, as far as rows are known."""
    guess, stats = diff.estimates.get(found.definition), diff.stored.get(found.definition)
    if guess is not None and guess.tables:
        return guess.buckets
    return None if stats is None else stats.buckets


def _as_dict(diff: Diff) -> dict[str, object]:
    return {
        "file": diff.file,
        "against": diff.against,
        "same": diff.comparison.same,
        "definitions": [_side_dict(diff, side) for side in diff.comparison.sides if side.kind is Kind.BUCKET],
        "lookups": [_side_dict(diff, side) for side in diff.comparison.sides if side.kind is Kind.LOOKUP],
        "streams": [{**asdict(stream), "change": stream.change.value} for stream in diff.comparison.streams],
        "missing_tables": list(diff.missing),
        "one_bucket_per_row": [{**asdict(each), "buckets": _buckets(diff, each)} for each in diff.per_row],
        "unsent": [finding.to_dict() for finding in diff.unsent],
        "notes": list(diff.notes),
    }


def _side_dict(diff: Diff, side: SideChange) -> dict[str, object]:
    told: dict[str, object] = {
        "name": side.name,
        "change": side.change.value,
        "before": side.before,
        "streams": list(side.streams),
        "tables": [f"{table.schema}.{table.name}" for table in side.tables],
    }
    if side.kind is Kind.BUCKET:
        stats, guess = diff.stored.get(side.before or side.name), diff.estimates.get(side.name)
        told["stored"] = None if stats is None else asdict(stats)
        told["to_download"] = None if guess is None or not guess.tables else asdict(guess)
    return told
