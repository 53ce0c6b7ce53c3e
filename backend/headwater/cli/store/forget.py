"""`headwater store forget`: removes a value from everything that the store keeps, and proves that it is gone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing

import click

from headwater.cli.config import ServiceConfig
from headwater.cli.existing_store import existing_store
from headwater.cli.source.spark import spark_results
from headwater.errors import HeadwaterError
from headwater.insight.forget import (
    ForgetPlan,
    Forgetting,
    check_computed,
    check_source,
    place_of,
    search_target,
    tables_named,
)
from headwater.insight.words import count, size
from headwater.replication.versions import computed_now
from headwater.storage.address import StoreAddress
from headwater.storage.open import open_store
from headwater.storage.sql.forget import LEAST_TEXT, Searched


def forget(
    config: ServiceConfig,
    table: str | None,
    row_id: str | None,
    text: str | None,
    *,
    id_too: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Forget a row of `table`, or a text ("-" reads it from standard input). Raises HW_8401 while the source or a
    current row holds it, HW_8402 when some of it is left because the store changed meanwhile."""
    if text == "-":
        text = sys.stdin.read().rstrip("\n")
    if text is not None and len(text) < LEAST_TEXT:
        raise HeadwaterError(
            f"a text of fewer than {LEAST_TEXT} characters occurs everywhere by chance",
            "--contains",
            "give more of it, or a row by --table and --id",
            code="HW_8403",
        )
    with existing_store(config) as store:
        stored = tables_named(store, config.source().name, table)
        check_source(config.source(), stored, row_id, text)
        computed = computed_now(store, config.source().tag)
        with spark_results(config) as spark:
            check_computed(config.source(), stored, computed, spark, row_id, text)
        target = search_target(store, stored, row_id, text, id_too=id_too)
        backend = open_store(store.address)
        with closing(backend.open_forget()) as finder, closing(backend.open_compaction()) as compaction:
            generation = stored[0].id if row_id is not None else 0
            _run(
                Forgetting(store.address, finder, compaction, target, generation),
                store.address,
                dry_run=dry_run,
                yes=yes,
            )


def _run(forgetting: Forgetting, where: StoreAddress, *, dry_run: bool, yes: bool) -> None:
    """Print the plan, carry it out, and prove the result."""
    plan = forgetting.plan(lambda: click.echo("waiting until the service has processed the deletion", err=True))
    for line in _planned(plan, forgetting.files_size):
        click.echo(line)
    if dry_run:
        click.echo("nothing was changed")
        return
    if not yes:
        click.confirm("Remove it for good?", abort=True)
    forgetting.remove(plan, click.echo)
    for line in _proof(forgetting.prove(), where):
        click.echo(line)


def _planned(plan: ForgetPlan, store_size: int) -> Iterator[str]:
    found = [each for each in plan.buckets.values() if each.left]
    overruled, removes = sum(each.overruled for each in found), sum(each.removes for each in found)
    if not plan.places:
        yield "the store's readable data does not contain it"
    if overruled:
        yield f"{count(overruled, 'op')} in {count(len(found), 'bucket')}: emptied, ids and checksums stay"
    if removes:
        again, reput_bytes = sum(each.reput for each in found), sum(each.reput_bytes for each in found)
        yield (
            f"{count(removes, 'removal')} to remove: everything before becomes one CLEAR; "
            f"{count(again, 'current row')} ({size(reput_bytes)}) are put again, and devices download them again"
        )
    if plan.named:
        yield f"{count(len(plan.named), 'bucket')} named by it and empty: removed"
    for text in plan.texts:
        if text.erasable:
            yield f"{place_of(text)}: {text.erasable:,} erased"
    yield f"then the store's files ({size(store_size)}) are rewritten; no process can write to them meanwhile"


def _proof(searched: Searched, where: StoreAddress) -> Iterator[str]:
    yield "it is gone. Not found in:"
    yield f"  {count(searched.ops, 'op')} as single lines"
    yield f"  {count(searched.segments, 'segment')}, {size(searched.segment_bytes)} once decompressed"
    if searched.texts:
        yield f"  {count(searched.texts, 'column')} of text: rows, lookups, names, records"
    yield "Out of reach, to be handled by you:"
    for place in (*_OUT_OF_REACH, where.kept_elsewhere):
        yield f"  {place}"


_OUT_OF_REACH = (
    "backups and exports of the store, and copies of its disk",
    "devices that are offline: they drop it at their next sync",
    "logs, and what `headwater lake export` wrote, until it is run with --reset",
    "the memory of running processes, until they end",
    "the source's own files, write-ahead log and backups",
)
