"""Visible checkpoints, and what is recorded of the flushes that made them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import orjson
import psycopg

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.store import Progress
from headwater.storage.shared.common import KEPT_FLUSHES, NAMEABLE

CHECKPOINT = "select coalesce(s.checkpoint, 0), t.tag, t.lsn from state s left join sources t on true"

_NOTE = """
insert into flushes (last_op, source, lsn, committed_us, buckets, lookups)
select %(last_op)s, %(source)s, %(lsn)s, %(committed_us)s, case when %(buckets)s::bigint[] is not null then
    (select coalesce(json_agg(name), '[]') from buckets where id = any(%(buckets)s::bigint[]))::text end, %(lookups)s
"""


def read_checkpoint(connection: psycopg.Connection) -> Checkpoint:
    """The visible checkpoint; op id 0 while there is none."""
    return as_checkpoint(connection.execute(CHECKPOINT).fetchall())


def as_checkpoint(rows: Sequence[tuple[Any, ...]]) -> Checkpoint:
    """The rows of CHECKPOINT as a checkpoint."""
    return Checkpoint(OpId(rows[0][0]), {tag: Lsn(lsn) for _, tag, lsn in rows if tag is not None})


def note_flush(
    connection: psycopg.Connection,
    source: str,
    progress: Progress,
    last_op: int,
    buckets: Collection[int],
    lookups: Collection[str],
) -> None:
    """Record which buckets and lookup keys a flush touched, if they are not too many to be named. Needs no result, so
    that it can be part of a pipeline."""
    connection.execute(
        _NOTE,
        {
            "last_op": last_op,
            "source": source,
            "lsn": progress.lsn,
            "committed_us": progress.committed_us,
            "buckets": list(buckets) if len(buckets) <= NAMEABLE else None,
            "lookups": orjson.dumps(sorted(lookups)).decode() if len(lookups) <= NAMEABLE else None,
        },
    )
    if last_op % 64 == 0:
        connection.execute(
            "delete from flushes where last_op <= coalesce((select last_op from flushes"
            " order by last_op desc limit 1 offset %s), 0)",
            [KEPT_FLUSHES],
        )


def names_of(connection: psycopg.Connection, keys: Iterable[int]) -> str:
    """Names of buckets as a JSON array."""
    rows = connection.execute("select name from buckets where id = any(%s::bigint[])", [list(keys)])
    return orjson.dumps([row[0] for row in rows]).decode()
