"""A store as it is given to be checked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.storage.contract.parts import PlacedRow
from headwater.storage.contract.verify import BucketHead, StoredSegment, cut_keys
from headwater_rules.results import LookupEntry
from tests.support.dictionaries.history import read_rows
from tests.support.dictionaries.kept import Kept


class DictVerify:
    """See `storage.contract.verify.VerifyReader`."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept
        self._state = kept.state

    def renew(self) -> None:
        self._state = self._kept.state

    def release(self) -> None:
        pass

    def heads(self, first: int, end: int) -> Iterator[BucketHead]:
        return (head for key in sorted(self._state.buckets) if first <= key < end and (head := self.head(key)))

    def head(self, key: int) -> BucketHead | None:
        held = self._state.buckets.get(key)
        if held is None:
            return None
        return BucketHead(key, held.name, held.definition, held.checksum, held.count, held.clear_op, held.last_op)

    def cut(self, ops: int) -> list[tuple[int, int]]:
        return cut_keys(((key, bucket.count) for key, bucket in sorted(self._state.buckets.items())), ops)

    def retired(self) -> frozenset[int]:
        return frozenset(self._state.retired)

    def tables(self) -> list[int]:
        return list(self._state.active_tables())

    def segments(self, bucket: int, after: int) -> Iterator[StoredSegment]:
        return (segment.stored for segment in self._state.buckets[bucket].segments_after(after))

    def hot(self, bucket: int, after: int, upto: int) -> Iterator[tuple[int, bytes]]:
        return self._state.buckets[bucket].hot_between(after, upto)

    def rows(self, table: int, first: int, end: int) -> Iterator[list[PlacedRow]]:
        return read_rows(self._state, table, first, end)

    def lookups(self, table: int, row_ids: Sequence[str]) -> dict[str, set[LookupEntry]]:
        held = self._state.tables[table].lookups
        return {row_id: set(held[row_id]) for row_id in row_ids if held.get(row_id)}

    def lone_lookups(self, table: int) -> list[str]:
        held = self._state.tables[table]
        return [row_id for row_id, entries in held.lookups.items() if entries and row_id not in held.rows]
