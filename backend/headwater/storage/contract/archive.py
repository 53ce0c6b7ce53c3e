"""The data of dumping a whole store from its back end and loading it into another one, keeping every id. It knows no
files: a store is dumped and loaded as rows of the datasets below, which mean the same in every back end.

Not dumped: leases and requests, which belong to running processes, and what an unfinished bulk job staged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headwater.errors import HeadwaterError

Row = Sequence[object]

DATASETS: Mapping[str, Mapping[str, type]] = {
    "versions": {
        "id": int, "yaml": str, "state": str, "origin": str, "created_at": float, "activated_at": float,
        "stopped_at": float, "note": str, "author": str, "message": str,
    },
    "definitions": {"source": str, "name": str, "digest": str, "state": str},
    "retired_buckets": {"id": int, "name": str},
    "sources": {"tag": str, "lsn": int, "slot": str, "system_id": str, "timeline": int},
    "tables": {"id": int, "source": str, "layouts": str, "fingerprint": str, "resync": str, "resync_detail": str},
    "rows": {
        "table_id": int, "place": int, "row_id": str, "layout": int, "line": str, "members": str, "subkey": str,
    },
    "lookups": {"key": str, "table_id": int, "row_id": str, "output": str},
    "flips": {"table_id": int, "row_id": str, "at": int},
    "ticks": {"source": str, "at": int},
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
    "changes": {"id": int, "at": float, "who": str, "role": str, "what": str, "detail": str},
    "cases": {"name": str, "content": str, "updated": float, "author": str},
    "write_checkpoints": {"key": str, "id": int, "lsns": str, "seq": int},
}  # fmt: skip
"""Columns and their types, by dataset. A text may be null where the store has none. Datasets are loaded in this order:
`tables` before `rows`."""


class ArchiveError(HeadwaterError):
    """A store can't be exported, or an archive can't be imported; nothing was changed."""

    code = "HW_4102"


class StoreNotEmptyError(HeadwaterError):
    """There is already a store at the address to import to."""

    code = "HW_4103"


@dataclass(frozen=True, slots=True)
class ArchivedState:
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
class Dump:
    """A store as it was at one moment, readable while its context is open. `counts` has the rows of each dataset.
    `batches` yields each dataset with some of its rows, in an order in which `Load.add` takes them (see
    `storage.shared.archive`), and in batches of bounded size."""

    state: ArchivedState
    counts: Mapping[str, int]
    batches: Iterator[tuple[str, Sequence[Row]]]
