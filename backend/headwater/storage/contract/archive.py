"""The interface for exporting a whole store from its back end and importing it into another one, keeping every id. It
knows no files: a store is exported and imported as rows of the datasets below, which mean the same in every back end.

Not exported: leases and requests, which belong to running processes, and what an unfinished bulk job staged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headwater.errors import HeadwaterError
from headwater.storage.address import StoreAddress

Row = Sequence[object]

DATASETS: Mapping[str, Mapping[str, type]] = {
    "versions": {
        "id": int, "yaml": str, "state": str, "origin": str, "created_at": float, "activated_at": float,
        "stopped_at": float, "note": str,
    },
    "sides": {"name": str, "digest": str, "state": str},
    "retired_buckets": {"id": int, "name": str},
    "sources": {"tag": str, "lsn": int, "slot": str, "system_id": str, "timeline": int},
    "tables": {"id": int, "source": str, "layouts": str, "fingerprint": str, "resync": str, "resync_detail": str},
    "rows": {
        "table_id": int, "place": int, "row_id": str, "layout": int, "line": str, "members": str, "subkey": str,
    },
    "lookups": {"key": str, "table_id": int, "row_id": str, "output": str},
    "buckets": {
        "id": int, "name": str, "definition": str, "checksum": int, "count": int, "clear_op": int, "last_op": int,
        "compacted_op": int, "compacted_count": int, "live_rows": int,
    },
    "moved_buckets": {"name": str, "id": int},
    "ops": {"bucket": int, "id": int, "line": str},
    "segments": {
        "bucket": int, "first_op": int, "last_op": int, "sealed": bool, "size": int, "checksum": int, "bodies": bytes,
    },
    "flushes": {"last_op": int, "source": str, "lsn": int, "committed_us": int, "buckets": str, "lookups": str},
    "bulk_jobs": {
        "kind": str, "source": str, "application": str, "tasks": int, "rows": int, "ops": int, "started": float,
        "finished": float,
    },
    "revocations": {"seq": int, "kind": str, "value": str, "since": float, "until": float},
    "write_checkpoints": {"key": str, "id": int, "lsns": str, "seq": int},
}  # fmt: skip
"""Columns and their types, by dataset. A text may be null where the store has none. `tables` are loaded before
`rows`."""


class ArchiveError(HeadwaterError):
    """A store can't be exported, or an archive can't be imported; nothing was changed."""

    code = "HW_4102"


class StoreNotEmptyError(HeadwaterError):
    """The place where a store is to be imported already holds one."""

    code = "HW_4103"


@dataclass(frozen=True, slots=True)
class StoreState:
    """The single values of a store. `secret` is hexadecimal; `last_table` and `last_version` are the highest ids ever
    given out, `last_write` the highest `seq` of a write checkpoint."""

    secret: str = field(repr=False)
    next_op: int
    checkpoint: int | None
    config: int | None
    last_table: int
    last_version: int
    last_write: int


@dataclass(frozen=True, slots=True)
class DumpPart:
    """Part of a dataset. Large datasets are split by keys from `first` to `last` (buckets for history, places for rows
    of `table`). `rows` is an estimate for one part, and exact for all parts of a dataset together."""

    dataset: str
    rows: int
    table: int = 0
    first: int = 0
    last: int = -1

    @property
    def is_range(self) -> bool:
        return self.last >= self.first


@dataclass(frozen=True, slots=True)
class DumpView:
    """What executors need to read one frozen state of a store. `snapshot` is the snapshot's name in back ends that have
    one."""

    address: StoreAddress
    snapshot: str = ""


@dataclass(frozen=True, slots=True)
class Dump:
    """A frozen state of a store, split into parts that can be read in parallel."""

    view: DumpView
    state: StoreState
    parts: tuple[DumpPart, ...]


class Load(Protocol):
    """A store being built where no process sees it. Leaving the context without `finish` discards it."""

    @property
    def address(self) -> StoreAddress:
        """Where the store is being built, for `load_rows`."""

    @property
    def parallel(self) -> bool:
        """Whether several processes may load at once."""

    def finish(self, state: StoreState, counts: Mapping[str, int]) -> None:
        """Check that it holds `counts` rows of each dataset, and move it into place in one step. Raises ArchiveError
        when the counts differ, and StoreNotEmptyError when another process has created a store there meanwhile."""


ROWS_A_PART = 250_000
_LAST_BUCKET = (1 << 63) - 1


def bucket_parts(counts: Iterable[tuple[str, int, int]]) -> list[DumpPart]:
    """Split history, given as (dataset, bucket, number of rows) in order of dataset and bucket. The parts together
    cover every possible bucket."""
    parts: list[DumpPart] = []
    first = held = 0
    current = ""
    for dataset, bucket, count in counts:
        if dataset != current:
            if current:
                parts.append(DumpPart(current, held, 0, first, _LAST_BUCKET))
            current, first, held = dataset, 0, 0
        elif held + count > ROWS_A_PART and held:
            parts.append(DumpPart(dataset, held, 0, first, bucket - 1))
            first, held = bucket, 0
        held += count
    if current:
        parts.append(DumpPart(current, held, 0, first, _LAST_BUCKET))
    return parts


def place_parts(table: int, first: int, last: int, rows: int) -> list[DumpPart]:
    """Split a table whose rows have places from `first` to `last`."""
    width = max(1, (last - first + 1) * ROWS_A_PART // max(1, rows))
    starts = range(first, last + 1, width)
    each, rest = divmod(rows, len(starts))
    return [
        DumpPart("rows", each + (rest if start == first else 0), table, start, start + width - 1) for start in starts
    ]
