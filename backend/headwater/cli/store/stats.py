"""`headwater store stats`: what the store holds, its disk use, and what grows."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import click

from headwater.cli.config import ServiceConfig
from headwater.cli.existing_store import existing_store, when
from headwater.cli.options import to_json
from headwater.insight.words import count, size
from headwater.oplog.lsn import format_lsn
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.stats import BucketStats, StoreStats, TableStats
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import SyncConfigError
from headwater_rules.versions import definitions_of

_POSTGRES_EPOCH = 946_684_800  # 2000-01-01, in seconds since 1970
_SHOWN_VERSIONS = 5
_SHOWN_ROWS = 10

_ORDERS: tuple[tuple[str, str, Callable[[BucketStats], float]], ...] = (
    ("ops_per_row", "most ops per current row", lambda bucket: bucket.ops_per_row),
    ("size", "most bytes", lambda bucket: bucket.size),
    ("grown", "most ops since their last compaction", lambda bucket: bucket.grown),
)


def show_stats(config: ServiceConfig, *, top: int, as_json: bool) -> None:
    """Print the store's statistics, as of one moment. Raises HW_8101."""
    with existing_store(config) as store:
        versions = store.versions()
        stats = open_store(store.address).store_stats()
    shown = (str(config.storage), stats, versions, top)
    click.echo(to_json(_as_json(*shown)) if as_json else "\n".join(_lines(*shown)))


# as JSON


def _as_json(where: str, stats: StoreStats, versions: Sequence[ConfigVersion], top: int) -> dict[str, object]:
    return {
        "store": where,
        "checkpoint": {
            "op_id": stats.checkpoint,
            "sources": [{"tag": each.source, "lsn": format_lsn(each.lsn), "slot": each.slot} for each in stats.sources],
        },
        "tables": [{**dataclasses.asdict(table), "resync": str(table.resync or "")} for table in stats.tables],
        "history": {
            **dataclasses.asdict(stats.history),
            "oldest_flush_time": _time(stats.history.oldest_flush_us),
            "buckets": len(stats.buckets),
        },
        "lookups": stats.lookups,
        "bytes": dataclasses.asdict(stats.disk),
        "definitions": [dataclasses.asdict(definition) for definition in stats.definitions],
        "buckets": {
            order: [{**dataclasses.asdict(each), "ops_per_row": each.ops_per_row} for each in found]
            for order, _, found in _growers(stats, top)
        },
        "versions": [_version(stats, version) for version in versions],
        "jobs": [dataclasses.asdict(job) for job in stats.jobs],
    }


def _version(stats: StoreStats, version: ConfigVersion) -> dict[str, object]:
    definitions = _definitions(version)
    held = [each for each in stats.definitions if each.definition in definitions]
    return {
        "id": version.id,
        "state": version.state.value,
        "created": version.created,
        "activated": version.activated,
        "definitions": sorted(definitions),
        "buckets": sum(each.buckets for each in held),
        "ops": sum(each.ops for each in held),
        "size": sum(each.size for each in held),
    }


def _definitions(version: ConfigVersion) -> frozenset[str]:
    """Names of the row sides of a version; none if it does not compile."""
    try:
        return frozenset(definitions_of(compile_config(version.yaml).plan))
    except SyncConfigError:
        return frozenset()


def _growers(stats: StoreStats, top: int) -> Iterator[tuple[str, str, list[BucketStats]]]:
    """The top buckets by each measure, without those whose measure is 0."""
    for order, title, measure in _ORDERS:
        found = sorted(stats.buckets, key=lambda bucket: (-measure(bucket), bucket.name))[:top]
        yield order, title, [bucket for bucket in found if measure(bucket) > 0]


# for people


def _lines(where: str, stats: StoreStats, versions: Sequence[ConfigVersion], top: int) -> Iterator[str]:
    yield f"store {where}"
    yield f"checkpoint  op {stats.checkpoint}"
    for source in stats.sources:
        yield f"  source {source.source} up to {format_lsn(source.lsn)}, slot {source.slot}"
    yield ""
    yield from _table_lines(stats.tables)
    yield from _history_lines(stats)
    yield ""
    yield "bucket definitions (bytes are what devices download, before compression)"
    yield from _aligned(
        [
            ("definition", "buckets", "ops", "bytes", "largest bucket"),
            *(
                (
                    d.definition,
                    f"{d.buckets:,}",
                    f"{d.ops:,}",
                    size(d.size),
                    f"{d.largest_ops:,} ops, {size(d.largest_size)}",
                )
                for d in stats.definitions
            ),
        ]
    )
    for _, title, found in _growers(stats, top):
        yield ""
        yield f"buckets with the {title}"
        yield from _aligned(
            [
                ("bucket", "rows", "ops", "ops/row", "bytes", "new ops"),
                *(
                    (b.name, f"{b.rows:,}", f"{b.ops:,}", f"{b.ops_per_row:,.1f}", size(b.size), f"{b.grown:,}")
                    for b in found
                ),
            ]
        )
    yield ""
    yield from _version_lines(stats, versions)
    if stats.jobs:
        yield ""
        yield "last bulk jobs"
        yield from _aligned(
            [
                (j.kind, when(j.finished), count(j.rows, "row"), count(j.ops, "op"), f"{j.finished - j.started:.1f} s")
                for j in stats.jobs
            ]
        )


def _table_lines(tables: Sequence[TableStats]) -> Iterator[str]:
    yield "tables"
    yield from _aligned(
        [("table", "rows", "bytes", "")]
        + [
            (t.name if t.source == "default" else f"{t.source}: {t.name}", f"{t.rows:,}", size(t.bytes), _remark(t))
            for t in tables
        ]
    )
    for table in tables:
        if not table.left_out_rows:
            continue
        yield f"  {table.name}: {count(table.left_out_rows, 'row')} with data too large for devices"
        for row in table.left_out[:_SHOWN_ROWS]:
            what = "the row" if not row.ops else f"its data in {count(row.ops, 'bucket')}"
            yield f"    row {row.row_id}: {what}, {row.size:,} bytes"
        if table.left_out_rows > _SHOWN_ROWS:
            yield f"    and {table.left_out_rows - _SHOWN_ROWS:,} more; --json names {len(table.left_out):,}"


def _remark(table: TableStats) -> str:
    return f"being compared with the source: {table.resync}" if table.resync else ""


def _history_lines(stats: StoreStats) -> Iterator[str]:
    history, disk = stats.history, stats.disk
    yield ""
    segments = f"{history.sealed_ops:,} in {count(history.segments, 'segment')}"
    yield f"history     {count(history.hot_ops, 'op')} as single lines, {segments}"
    oldest = _time(history.oldest_flush_us)
    since = f", since {when(oldest)}" if oldest else ""
    yield f"flushes     {history.flushes:,} on record{since}"
    yield f"lookups     {stats.lookups:,}"
    parts = {
        "rows": disk.rows, "ops": disk.ops, "segments": disk.segments, "lookups": disk.lookups, "other": disk.other,
        "free": disk.free,
    }  # fmt: skip
    yield f"disk        {size(disk.file)}: " + ", ".join(f"{what} {size(number)}" for what, number in parts.items())


def _version_lines(stats: StoreStats, versions: Sequence[ConfigVersion]) -> Iterator[str]:
    yield "sync config versions, newest first"
    shown = [version for version in reversed(versions) if version.state is not VersionState.FAILED][:_SHOWN_VERSIONS]
    for version in shown:
        held = _version(stats, version)
        yield (
            f"  {version.id}  {version.state.value:10}  since {when(version.activated or version.created)}"
            f"  {held['buckets']:,} buckets, {held['ops']:,} ops, {size(float(str(held['size'])))}"
        )


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of numbers, except the first column, aligned to the right; others to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if number and _is_number(rows[-1][number]) else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield ("  " + "  ".join(cells)).rstrip()


def _is_number(text: str) -> bool:
    return text[:1].isdigit() and len(text.split()) <= 2


def _time(committed_us: int) -> float:
    """The time of a commit in seconds since 1970, never in the future; 0 if it is not known."""
    return min(time.time(), committed_us / 1e6 + _POSTGRES_EPOCH) if committed_us else 0.0
