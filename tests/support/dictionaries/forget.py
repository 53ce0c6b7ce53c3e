"""Finding and erasing values."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from headwater.storage.contract.archive import DATASETS
from headwater.storage.contract.forget import FoundOp, FoundText, Searched, SearchedFile, found_in_segment
from headwater.storage.contract.requests import RequestState
from headwater.storage.contract.store import Lease
from headwater.storage.contract.versions import VersionState
from headwater.storage.shared.packing import unpacked
from tests.support.dictionaries.archive import ROWS
from tests.support.dictionaries.kept import Kept
from tests.support.dictionaries.state import State

_OVER = {RequestState.DONE, RequestState.FAILED}
_GONE = {VersionState.STOPPED, VersionState.FAILED}


class DictForget:
    """See `storage.contract.forget.ForgetStore`. What the others have files for is the state as bytes."""

    def __init__(self, kept: Kept) -> None:
        self._kept = kept

    def ops(self, hints: Sequence[str], searched: Searched) -> Iterator[FoundOp]:
        state = self._kept.state
        for packed in state.staged:
            for op_id, op in found_in_segment(unpacked(packed.bodies), hints, 0, sealed=False):
                yield FoundOp(0, op_id, op)
        for key, bucket in state.buckets.items():
            searched.ops += len(bucket.hot)
            for op_id, line in bucket.hot.items():
                if _has(line.decode(), hints):
                    yield FoundOp(key, op_id, line.decode())
            for _, segment in bucket.segments.values():
                content = unpacked(segment.bodies or b"")
                searched.segments += 1
                searched.segment_bytes += len(content)
                for op_id, op in found_in_segment(content, hints, segment.first, segment.sealed):
                    yield FoundOp(key, op_id, op)

    def texts(self, hints: Sequence[str], searched: Searched) -> list[FoundText]:
        found: Counter[tuple[str, str]] = Counter()
        erasable: Counter[tuple[str, str]] = Counter()
        for text in _texts(self._kept.state):
            searched.texts += 1
            if _has(text.content, hints):
                found[text[:2]] += 1
                erasable[text[:2]] += text.erasable
        return [FoundText(*place, number, erasable[place]) for place, number in found.items()]

    def rows(self, table: int, row_id: str) -> int:
        tables = self._kept.state.tables
        return int(table in tables and row_id in tables[table].rows)

    def erase_texts(self, lease: Lease, hints: Sequence[str]) -> int:
        erased = sum(text.erasable and _has(text.content, hints) for text in _texts(self._kept.state))
        with self._kept.changing(lease) as state:
            _erase(state, hints)
        return erased

    def named_buckets(self, hints: Sequence[str]) -> list[int]:
        return [key for key, bucket in self._kept.state.buckets.items() if _has(bucket.name, hints)]

    def drop_bucket(self, lease: Lease, bucket: int) -> None:
        with self._kept.changing(lease) as state:
            del state.buckets[bucket]

    def unpublished(self) -> bool:
        state = self._kept.state
        return bool(self._kept.parts or state.staged or len(state.tables) > len(state.active_tables()))

    def rewrite(self, say: Callable[[str], None]) -> None:
        pass

    def search_files(self, hints: Sequence[str]) -> list[SearchedFile]:
        content = pickle.dumps(self._kept.state)
        return [SearchedFile("memory", len(content), any(hint.encode() in content for hint in hints))]

    def size(self) -> int:
        return len(pickle.dumps(self._kept.state))

    def close(self) -> None:
        pass


class _Text(NamedTuple):
    table: str
    column: str
    content: str
    erasable: bool


def _texts(state: State) -> Iterator[_Text]:
    """Every text, but for ops."""
    for dataset, columns in DATASETS.items():
        for row in ROWS[dataset](state) if dataset != "ops" else ():
            values = dict(zip(columns, row, strict=True))
            table = f"rows_{values['table_id']}" if dataset == "rows" else dataset
            for column, value in values.items():
                if isinstance(value, str):
                    gone = values.get("state") in {state.value for state in _GONE}
                    yield _Text(table, column, value, _erasable(dataset, column, gone=gone))
    for key, text in state.notes.items():
        yield _Text("notes", key, text, erasable=False)
    for request in state.requests.values():
        for column in ("payload", "progress", "result"):
            yield _Text("requests", column, getattr(request, column), erasable=request.state in _OVER)


def _erasable(dataset: str, column: str, *, gone: bool) -> bool:
    always = {("flushes", "buckets"), ("flushes", "lookups"), ("versions", "note"), ("write_checkpoints", "key")}
    return (dataset, column) in always or ((dataset, column) == ("versions", "yaml") and gone)


def _erase(state: State, hints: Sequence[str]) -> None:
    for last, flush in state.flushes.items():
        buckets = None if _has(flush.buckets, hints) else flush.buckets
        lookups = None if _has(flush.lookups, hints) else flush.lookups
        state.flushes[last] = flush._replace(buckets=buckets, lookups=lookups)
    state.requests = {
        number: request
        for number, request in state.requests.items()
        if request.state not in _OVER or not _has(f"{request.payload}\n{request.progress}\n{request.result}", hints)
    }
    state.versions = {
        number: replace(version, note="") if _has(version.note, hints) else version
        for number, version in state.versions.items()
        if version.state not in _GONE or not _has(version.yaml, hints)
    }
    state.writes = {key: write for key, write in state.writes.items() if not _has(key, hints)}


def _has(text: str | None, hints: Sequence[str]) -> bool:
    return text is not None and any(hint in text for hint in hints)
