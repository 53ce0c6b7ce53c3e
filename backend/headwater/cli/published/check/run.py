"""`headwater migrate check`: what of a deployment of the published service is taken over as it is, what is ignored, and
what has to change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from textwrap import TextWrapper

import click

from headwater.cli.existing_store import existing_store
from headwater.cli.published.check.configs import config_outcomes, rules_outcomes
from headwater.cli.published.check.result import Fate, Outcome
from headwater.cli.published.check.source import source_outcomes
from headwater.codes import Kind
from headwater.config.errors import ConfigError
from headwater.config.given import ConfigSource
from headwater.config.review import Review, review_config
from headwater.errors import HeadwaterError
from headwater.replication.own_slot import slot_note
from headwater.source.catalog.schema import see_schema
from headwater.source.connect import SourceSettings
from headwater.storage.open import open_backend

_DEVICES = "devices download their rows once more, under other bucket names; writes that wait on them stay and are sent"

_WRAPPED = TextWrapper(110, subsequent_indent=" " * 11, break_long_words=False, break_on_hyphens=False)


def check(configs: ConfigSource) -> int:
    """Look at config, rules and source, and print what becomes of them. Returns the exit code: 1 when something has to
    change. Changes nothing. Raises ConfigError when the service config can't be read at all."""
    review = review_config(configs, os.environ, Path.cwd())
    outcomes = list(_outcomes(review))
    for fate in Fate:
        _print(fate, [each for each in outcomes if each.fate is fate])
    changes = sum(each.fate is Fate.CHANGE for each in outcomes)
    if changes:
        click.echo(f"{changes} of these have to change before Headwater can take over. See docs/migrating.md.")
        return 1
    click.echo(
        "Nothing has to change in config, rules and source. Next is `headwater doctor`, which also looks at keys, ports"
        " and this machine. See docs/migrating.md for what differs."
    )
    return 0


def _outcomes(review: Review) -> Iterator[Outcome]:
    yield from config_outcomes(review)
    source = _source(review)
    seen = see_schema([] if source is None else [source])
    compiled, found = rules_outcomes(review.config, seen.schema)
    yield from found
    yield Outcome(Fate.NOTE, "rules", seen.note)
    if source is not None:
        tables = compiled.plan.tables() if compiled is not None else None
        yield from source_outcomes(source, tables, _noted_slot(review, source))
        yield from _store_outcomes(review, source)
    elif not any(each.key.startswith("replication") for each in review.errors):
        try:
            review.config.source()
        except ConfigError as error:
            (issue,) = error.issues
            yield Outcome(Fate.CHANGE, "source", issue.what, issue.fix)
    yield Outcome(Fate.NOTE, "devices", _DEVICES)


def _source(review: Review) -> SourceSettings | None:
    """The source, if nothing is wrong with how it is given."""
    wrong = any(each.key.startswith("replication") for each in review.errors)
    return review.config.sources[0] if review.config.sources and not wrong else None


def _store_outcomes(review: Review, source: SourceSettings) -> Iterator[Outcome]:
    """What keeps the first start from making the store, or would have the source send us our own writes."""
    if any(each.key.startswith("storage") for each in review.errors):
        return
    backend = open_backend(review.config.storage)
    try:
        backend.raise_if_published(source.publications)
        for each in backend.lacking():
            fix = (
                f"run {'; '.join(each.sql)}" if each.sql else "give the user that Headwater runs as the right to write"
            )
            yield Outcome(Fate.CHANGE, "store", each.what, fix)
    except HeadwaterError as error:
        fate = Fate.NOTE if error.kind is Kind.RETRY else Fate.CHANGE  # it may be reached from elsewhere only
        yield Outcome(fate, "store", f"[{error.code}] {error.what} ({error.where})", error.fix)


def _noted_slot(review: Review, source: SourceSettings) -> str:
    """The slot that our store follows, which the config may name otherwise by now. Empty if there is no such store, or
    to open it would upgrade it."""
    if any(each.key.startswith("storage") for each in review.errors):
        return ""
    try:
        backend = open_backend(review.config.storage)
        if not backend.exists() or backend.older_format() is not None:
            return ""
        with existing_store(review.config) as store:
            return slot_note(source, store).name
    except HeadwaterError:
        return ""


def _print(fate: Fate, outcomes: list[Outcome]) -> None:
    if not outcomes:
        return
    click.echo(f"{fate.value}:")
    for each in outcomes:
        click.echo(_WRAPPED.fill(f"  {each.area:<8} {each.what}"))
        if each.fix:
            click.echo(f"{'':<11}-> {each.fix}")  # to be copied, so in one line
    click.echo()
