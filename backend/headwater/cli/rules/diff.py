"""`headwater rules diff`: what a sync config would change, and how much devices would download."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from headwater.cli.config import ServiceConfig
from headwater.cli.existing_store import existing_store, served, when
from headwater.cli.options import to_json
from headwater.cli.progress import scan_progress
from headwater.cli.rules.sync_config import compile_rules, read_text, wrong_rules
from headwater.insight.diff import Diff, compared, diff_with_rows, of_source
from headwater.insight.rows import CurrentRows
from headwater.insight.words import count, per_bucket, size
from headwater.source.catalog.schema import see_schema
from headwater.storage.open import open_store
from headwater_rules.compiler.advice import BucketPerRow, ForEverybody, buckets_per_row
from headwater_rules.compiler.compile import Compiled
from headwater_rules.evaluate.limits import MOST_BUCKETS
from headwater_rules.plan import NO_RULES, SyncPlan
from headwater_rules.schema import not_compared
from headwater_rules.versions import ChangeKind, Comparison, DefinitionChange, DefinitionKind, StreamChange, compare


def show_diff(
    config: ServiceConfig | None,
    file: Path,
    against: Path | None,
    *,
    sources: Sequence[str] = (),
    sample: int | None,
    as_json: bool,
    allow_missing: bool = False,
) -> None:
    """Compare `file` with another file or, without one, with the served version, and with the sources' tables. Rows and
    bytes come from the store of `config`; estimates count the rows of these sources, or of all, and `sample` limits the
    rows evaluated per table, None evaluates all."""
    if config is not None and sources:
        config.chosen(sources)  # raises for an unknown one
    text = read_text(file)
    seen = not_compared("there is no service config") if config is None else see_schema(config.sources, text)
    with wrong_rules(str(file), as_json=as_json):
        new, findings = compared(text, seen.schema, allow_missing=allow_missing)
    plan = new.plan
    other = None if against is None else compile_rules(read_text(against), str(against), as_json=as_json).plan
    if other is not None and (config is None or not open_store(config.storage).exists()):
        note = "numbers of rows and bytes need a store"
        allowed = MOST_BUCKETS if config is None else config.api.parameters.requests.max_buckets
        found = Diff(
            str(file),
            str(against),
            compare(other, plan),
            allowed,
            per_row=buckets_per_row(plan),
            everybody=new.everybody,
            notes=(note,),
        )
    else:
        assert config is not None, "the command has loaded one"
        found = _with_store(config, file, new, against, other, sources, sample)
    found = replace(found, unsent=of_source(findings), notes=(*found.notes, seen.note))
    if as_json:
        click.echo(to_json(found.as_dict()))
        return
    for line in _lines(found):
        click.echo(line)
    for each in found.per_row:
        click.echo(f"warning: {_per_row(found, each)}", err=True)
    for shared in found.everybody:
        click.echo(f"warning: {_for_everybody(found, shared)}", err=True)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)


def _with_store(
    config: ServiceConfig,
    file: Path,
    new: Compiled,
    against: Path | None,
    other: SyncPlan | None,
    sources: Sequence[str],
    sample: int | None,
) -> Diff:
    with existing_store(config) as store:
        name = str(against)
        if other is None:
            version = served(store.versions())
            name = "no version: none is served yet"
            other = NO_RULES
            if version is not None:
                name = f"version {version.id}, served since {when(version.activated or version.created)}"
                other = compile_rules(version.yaml, f"version {version.id}").plan
        return diff_with_rows(
            CurrentRows(store, config.sources, scan_progress, sources),
            new,
            other,
            file=str(file),
            against=name,
            allowed=config.api.parameters.requests.max_buckets,
            sample=sample,
        )


_HEADINGS = {
    ChangeKind.UNCHANGED: "unchanged: devices keep what they have",
    ChangeKind.CHANGED: "changed: devices download the new rows and drop the old ones",
    ChangeKind.ADDED: "added: devices that get them download them",
    ChangeKind.REMOVED: "removed: devices drop them",
}


def _lines(diff: Diff) -> Iterator[str]:
    yield f"{diff.file} against {diff.against}"
    if diff.comparison.same:
        yield "no difference: devices download nothing"
    for change, heading in _HEADINGS.items():
        sides = diff.comparison.having(change, kind=DefinitionKind.BUCKET)
        if sides:
            yield f"\n{heading}"
        for side in sides:
            yield from _side(diff, side)
    yield from _lookups(diff.comparison)
    streams = [line for stream in diff.comparison.streams if (line := _stream(stream))]
    if streams:
        yield "\nstreams"
        yield from streams
    computed = [f"  {name}: {change.value}" for name, change in diff.comparison.computed if change in _COMPUTED]
    if computed:
        yield "\ncomputed tables: devices get the rows that differ"
        yield from computed
    yield from _basis(diff)


_COMPUTED = {ChangeKind.CHANGED, ChangeKind.ADDED, ChangeKind.REMOVED}


def _side(diff: Diff, side: DefinitionChange) -> Iterator[str]:
    before = f"  (was {side.before})" if side.before else ""
    tables = ", ".join(table.written for table in side.tables)
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
    found = [(change, len(comparison.having(change, kind=DefinitionKind.LOOKUP))) for change in ChangeKind]
    changes = ", ".join(f"{number} {change.value}" for change, number in found if number)
    if changes:
        yield f"\nlookups: {changes}; they are never downloaded"


def _stream(stream: StreamChange) -> str | None:
    if stream.change is ChangeKind.UNCHANGED:
        return None
    parts = {
        "its rows": stream.rows,
        "its lookups": stream.lookups,
        "who gets its buckets": stream.request,
        "its priority": stream.priority,
        "auto_subscribe": stream.auto_subscribe,
    }
    changes = ", ".join(part for part, changed in parts.items() if changed)
    cost = "" if stream.rows or stream.change is not ChangeKind.CHANGED else "; no row is downloaded again"
    return f"  {stream.name}: {stream.change.value}{f' in {changes}' if changes else ''}{cost}"


def _basis(diff: Diff) -> Iterator[str]:
    """What the numbers are based on."""
    sampled: dict[str, None] = {}
    for guess in diff.estimates.values():
        tables = ", ".join(guess.tables)
        if guess.tables and guess.exact:
            sampled[f"all {guess.rows_read:,} rows of {tables} in the store"] = None
        elif guess.tables:
            sampled[f"a sample of {guess.rows_read:,} rows of {tables} in the store"] = None
    if sampled:
        yield "\ndownloads are estimated from " + "; from ".join(sampled)
    for table in diff.missing:
        yield f"the store has no rows of {table}: they are not counted, and a deploy reads them from the source"
    for finding in diff.unsent:
        yield f"{finding.message}; {finding.suggestion}"


def _per_row(diff: Diff, found: BucketPerRow) -> str:
    buckets = diff.buckets(found)
    guess = diff.estimates.get(found.definition)
    about = "" if guess is None or guess.exact else "about "
    there = "" if buckets is None else f": {about}{buckets:,} now"
    allowed = f"a device may have {diff.allowed:,} (api.parameters.max_buckets_per_connection)"
    return f"stream {found.stream} has one bucket for each row of {found.table}, by {found.value}{there}, and {allowed}"


def _for_everybody(diff: Diff, found: ForEverybody) -> str:
    rows = diff.rows(found)
    guess = diff.shared.get(found.definition)
    about = "" if guess is None or guess.exact else "about "
    many = "all rows" if found.whole else "the same rows"
    amount = many if rows is None else f"{about}{count(rows, 'row')}"
    return f"every user gets {amount} of {found.table} from stream {found.stream}"
