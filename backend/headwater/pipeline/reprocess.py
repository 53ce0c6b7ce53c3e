"""The tasks of a reprocess: read current rows, evaluate incomplete row sides, write additions.

Runs on executors and imports no pyspark. Entries that a row already has, from an interrupted attempt or from the
stream, are left as they are, so the work can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headwater.bulk.bound_table import BoundTable, bind, current_cells, oversized_ops_of
from headwater.bulk.contract import ReprocessJob
from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import OVERSIZED_NAMED, is_stub
from headwater.oplog.transform import OVERSIZED, Buckets, DraftOp, decode_memberships, oversized_ops
from headwater.pipeline.progress import TaskProgress
from headwater.storage.contract.parts import CurrentRow, PlacedRow, StagedPart
from headwater.storage.contract.store import StoredTable
from headwater.storage.open import open_store
from headwater.storage.sql.parts import PartWriter
from headwater_rules.results import LookupEntry, Put

PAGE_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class ReprocessTask:
    """The rows of one table at places [first, end)."""

    stored: StoredTable
    first: int
    end: int

    def run(self, job: ReprocessJob, number: int, attempt: str) -> StagedPart:
        bound = bind([job.plan], job.source_name, self.stored.relation, job.types, self.stored.id, job.keys)
        bound = bound and bound.at(job.now)
        with (
            TaskProgress(job.directory, number, attempt) as progress,
            open_store(job.store).open_part(self.stored.id, number, attempt) as part,
        ):
            in_page, bytes_left = 0, job.batch_bytes
            refused: list[str] = []
            for batch in open_store(job.store).read_rows(self.stored.id, self.first, self.end, job.batch_bytes):
                if bound is not None:
                    too_large, size = _write_additions(bound, self.stored, batch, part)
                    refused += too_large
                    bytes_left -= size
                progress.add(len(batch))
                in_page += len(batch)
                if in_page >= PAGE_ROWS or bytes_left <= 0:
                    part.end_page()
                    in_page, bytes_left = 0, job.batch_bytes
            part.end_page()
            return replace(part.finish(), refused=tuple(refused[:OVERSIZED_NAMED]))


def _write_additions(
    bound: BoundTable, stored: StoredTable, batch: Sequence[PlacedRow], part: PartWriter
) -> tuple[list[str], int]:
    """Write the additions of a batch. Returns the ops that are too large, in words, and how many bytes of ops were
    written."""
    name = stored.relation.qualified_name
    refused: list[str] = []
    rows: list[CurrentRow] = []
    lookups: list[tuple[str, LookupEntry]] = []
    ops: list[DraftOp] = []
    buckets: Buckets = {}
    flips: dict[str, int] = {}
    transform = bound.transform
    for _, row in batch:
        row_id, members, subkey = row.row_id, row.members, row.subkey
        if is_stub(row.line):
            continue
        puts, entries, _, flip = transform.evaluate(current_cells(stored.layouts, row), row_id)
        if flip is not None:  # even where the row has no entry yet
            flips[row_id] = flip
        if members and puts:
            puts = _missing(puts, members, row_id, transform.keys)
        if not puts and not entries:
            continue
        added = transform.move("", subkey, row_id, puts, ops, buckets)
        rows.append(CurrentRow(row_id, 0, "", added, subkey))
        lookups += [(row_id, entry) for entry in entries]
        if OVERSIZED in added:
            refused += oversized_ops_of(name, row_id, added)
    part.write(rows, lookups, ops, buckets, flips)
    return refused, sum(len(op.body) for op in ops)


def _missing(puts: list[Put], members: str, row_id: str, keys: StoreKeys) -> list[Put]:
    there = {(member.bucket, member.table, member.id) for member in decode_memberships(members, row_id)}
    oversized = {(op.bucket, op.table) for op in oversized_ops(members)}
    return [
        put
        for put in puts
        if (keys.bucket(put.bucket), put.table, put.id) not in there
        and (keys.bucket(put.bucket), put.table) not in oversized
    ]
