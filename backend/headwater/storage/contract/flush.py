"""One transaction of live replication.

A store keeps what it is given durably, numbers ops, and returns finished lines. It knows nothing of rules or of
Postgres as a source. Calls block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from headwater.oplog.transform import Bucket, DraftOp
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import (
    ReplicationProgress,
)
from headwater_rules.results import LookupEntry


class Flush(Protocol):
    """One store transaction. Nothing of it is visible before `commit`, and nothing of it remains after `rollback`.

    Within each bucket, ops are numbered in the order in which they are appended. Once a newer lease exists,
    LeaseLostError is raised. Writes may be kept back and sent together, so errors may come with a later call, at the
    latest with `commit`.
    """

    def current(self, table: int, row_ids: Sequence[str]) -> dict[str, CurrentRow]:
        """The current rows among `row_ids`."""

    def load(self, table: int, row_ids: Sequence[str], room: int) -> tuple[dict[str, CurrentRow], int]:
        """The current rows among the first of `row_ids`, and how many ids were covered: as many as give about `room`
        bytes of rows, and at least one."""

    def copies(self, table: int, content: str) -> list[str]:
        """Row ids of the copies of an identical row, unordered."""

    def lookup_entries(self, table: int, row_id: str) -> list[LookupEntry]: ...

    def put_rows(self, table: int, rows: Sequence[CurrentRow]) -> None:
        """Insert or replace rows."""

    def delete_rows(self, table: int, row_ids: Sequence[str]) -> None: ...

    def replace_lookups(self, table: int, row_id: str, entries: Sequence[LookupEntry]) -> None: ...

    def append(self, ops: Sequence[DraftOp], buckets: Mapping[str, Bucket]) -> None:
        """Number and store ops. `buckets` has every bucket among them that may be new, by name; a new bucket starts
        with a CLEAR. Drops the ops of a bucket that neither exists nor is named: its definition was retired. Raises
        BucketKeyTakenError when a bucket has the key of another one; nothing of this transaction is kept then."""

    def truncate(self, table: int, definitions: Iterable[str]) -> int:
        """Replace the table by a new, empty generation without lookups, and return its id. Clears every non-empty
        bucket of `definitions` with one op."""

    def reset_bucket(self, key: int, bucket: Bucket | None) -> None:
        """Delete everything that a bucket (by its key) holds, damaged or not, and begin it with a CLEAR. The caller
        appends its rows again. A bucket that does not exist is created if `bucket` is given. Earlier checkpoints
        count as overtaken in it."""

    def table_members(self, table: int) -> Iterable[tuple[str, str, str | None]]:
        """(row id, members, subkey) of every row of the table."""

    def mark_resync(self, table: int, reason: ResyncReason) -> None:
        """Record within this transaction that a table has to be compared with the source, because the transaction does
        not write all of its changes."""

    def rows_with_lines(self, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        """Row ids by line, for tables whose rows nothing else identifies. Reads the whole table."""

    def commit(self, source: str, progress: ReplicationProgress) -> Checkpoint:
        """Commit everything, with the source's position, and return the new checkpoint. Durable on return."""

    def rollback(self) -> None: ...
