"""Taking a store out, as rows of the datasets in `storage.contract.archive`, and building one from them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import orjson

from headwater.storage.contract.archive import (
    DATASETS,
    ArchiveError,
    Dump,
    DumpPart,
    DumpView,
    Row,
    StoreNotEmptyError,
    StoreState,
)
from headwater.storage.contract.parts import BulkRecord, CurrentRow, PlacedRow
from headwater.storage.contract.reader import WriteCheckpoint
from headwater.storage.contract.reason import reason_columns, stored_reason
from headwater.storage.contract.revocations import Revocation, RevokedKind
from headwater.storage.contract.store import SourceState
from headwater.storage.contract.verify import StoredSegment
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.shared.common import decode_layouts, encode_layouts
from headwater_rules.results import LookupEntry
from tests.support.dictionaries.kept import STORES, DictAddress, Kept, Place
from tests.support.dictionaries.state import Bucket, Flushed, State, Table

_numbers = itertools.count(1)

ROWS: Mapping[str, Callable[[State], Iterable[Row]]] = {
    "versions": lambda state: (_version_row(version) for version in state.versions.values()),
    "sides": lambda state: ((name, *side) for name, side in state.sides.items()),
    "retired_buckets": lambda state: state.retired.items(),
    "sources": lambda state: map(astuple, state.sources.values()),
    "tables": lambda state: (
        (number, t.source, encode_layouts(t.layouts), t.fingerprint, *reason_columns(t.resync))
        for number, t in state.active_tables().items()
    ),
    "rows": lambda state: (
        (number, place, *row) for number, table in state.active_tables().items() for place, row in table.in_order()
    ),
    "lookups": lambda state: (
        (entry.key, number, row_id, entry.output)
        for number, table in state.active_tables().items()
        for row_id, entries in table.lookups.items()
        for entry in entries
    ),
    "buckets": lambda state: (
        (key, *astuple(replace(bucket, hot={}, segments={}))[:-2]) for key, bucket in state.buckets.items()
    ),
    "ops": lambda state: (
        (key, op_id, line.decode()) for key, bucket in state.buckets.items() for op_id, line in bucket.hot.items()
    ),
    "segments": lambda state: (
        (key, *segment.stored) for key, bucket in state.buckets.items() for segment in bucket.segments_after(0)
    ),
    "flushes": lambda state: state.flushes.values(),
    "bulk_jobs": lambda state: map(astuple, state.jobs),
    "revocations": lambda state: (
        (each.seq, each.kind.value, each.value, each.since, each.until) for each in state.revocations
    ),
    "write_checkpoints": lambda state: (
        (write.key, write.id, orjson.dumps(write.lsns).decode(), write.seq) for write in state.writes.values()
    ),
}
"""What a state has of each dataset."""


def _version_row(version: ConfigVersion) -> Row:
    number, yaml, state, origin, *rest = astuple(version)
    return number, yaml, state.value, origin.value, *rest


def _add(state: State, dataset: str, row: Sequence[Any]) -> None:
    key, *rest = row
    match dataset:
        case "versions":
            yaml, stage, origin, *times = rest
            state.versions[key] = ConfigVersion(key, yaml, VersionState(stage), Origin(origin), *times)
        case "tables":
            source, layouts, fingerprint, *reason = rest
            state.tables[key] = Table(source, decode_layouts(layouts), fingerprint, stored_reason(*reason))
        case "rows":
            state.tables[key].rows[row[2]] = PlacedRow(row[1], CurrentRow(*row[2:]))
            state.tables[key].places = max(state.tables[key].places, row[1])
        case "lookups":
            state.tables[row[1]].add_lookups(row[2], [LookupEntry(key, row[3])])
        case "ops":
            state.buckets.setdefault(key, Bucket("", "")).hot[row[1]] = row[2].encode()
        case "segments":
            state.buckets.setdefault(key, Bucket("", ""))
            state.place(key, StoredSegment(*rest))
        case "buckets":
            held, made = state.buckets.get(key, Bucket("", "")), Bucket(*rest)
            state.buckets[key] = replace(made, hot=held.hot, segments=held.segments)
        case _:
            _add_simple(state, dataset, row)


def _add_simple(state: State, dataset: str, row: Sequence[Any]) -> None:
    key, *rest = row
    match dataset:
        case "sides":
            state.sides[key] = (rest[0], rest[1])
        case "retired_buckets":
            state.retired[key] = rest[0]
        case "sources":
            state.sources[key] = SourceState(*row)
        case "flushes":
            state.flushes[key] = Flushed(*row)
        case "revocations":
            state.revocations += (Revocation(key, RevokedKind(rest[0]), *rest[1:]),)
            state.last_revocation = max(state.last_revocation, key)
        case "bulk_jobs":
            state.jobs += (BulkRecord(*row),)
        case _:
            assert dataset == "write_checkpoints"
            state.writes[key] = WriteCheckpoint(key, rest[0], orjson.loads(rest[1]), rest[2])


def _counts(state: State) -> dict[str, int]:
    found = {dataset: len(list(ROWS[dataset](state))) for dataset in DATASETS}
    return {dataset: number for dataset, number in found.items() if number}


class Archive(Place):
    """What `storage.backend.Backend` has of it."""

    @contextmanager
    def dump(self, scratch: Path) -> Iterator[Dump]:
        if self.address.name not in STORES:
            raise ArchiveError("there is no store", self.address.name, "make one")
        frozen = DictAddress(f"{self.address.name}, dump {next(_numbers)}")
        state = self.state
        STORES[frozen.name] = Kept(state)
        ids = state.last_table, state.last_version, state.last_write
        told = StoreState(state.salt.hex(), state.next_op, state.checkpoint, state.config, *ids)
        yield Dump(DumpView(frozen.known), told, tuple(DumpPart(*each) for each in _counts(state).items()))
        del STORES[frozen.name]

    def read_part(self, snapshot: str, part: DumpPart) -> Iterator[list[Row]]:
        yield list(ROWS[part.dataset](self.state))

    def check_empty(self) -> None:
        if self.address.name in STORES:
            state = self.state
            if state.versions or state.sources or state.tables or state.buckets or state.leases:
                raise StoreNotEmptyError("there is a store already", self.address.name, "name another one")

    @contextmanager
    def load(self) -> Iterator[DictLoad]:
        self.check_empty()
        loading = DictLoad(self)
        yield loading
        del STORES[loading.place.address.name]

    def load_rows(self, dataset: str, batches: Iterable[Sequence[Row]]) -> None:
        with self.kept.changing() as state:
            for row in itertools.chain.from_iterable(batches):
                _add(state, dataset, row)


class DictLoad:
    """See `storage.contract.archive.Load`."""

    parallel = False

    def __init__(self, target: Archive) -> None:
        self._target = target
        self.place = Place(DictAddress(f"{target.address.name}, being loaded"))
        self.address = self.place.address.known
        STORES[self.place.address.name] = Kept()

    def finish(self, state: StoreState, counts: Mapping[str, int]) -> None:
        loaded = self.place.state
        if _counts(loaded) != {dataset: number for dataset, number in counts.items() if number}:
            raise ArchiveError("not all rows were taken in", self._target.address.name, "import it again")
        loaded.salt, loaded.next_op = bytes.fromhex(state.salt), max(loaded.next_op, state.next_op)
        loaded.checkpoint, loaded.config = state.checkpoint, state.config
        loaded.last_table, loaded.last_version = state.last_table, state.last_version
        loaded.last_write = state.last_write
        self._target.check_empty()
        self._target.made.state = loaded
