"""Transactions of the source that can't be applied: recorded in the store, and skipped if that is allowed. The
comparison of all tables that follows brings their changes, so nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import orjson

from headwater.oplog.lsn import Lsn, format_lsn, parse_lsn
from headwater.replication.errors import PoisonError
from headwater.replication.requests import RequestKind
from headwater.replication.tables.changes import distrust
from headwater.source.connect import SourceSettings
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import Lease, RequestState
from headwater.storage.sql.writer import StoreWriter

_KEPT = 50
_MOST_SKIPS, _MOST_SKIPS_SECONDS = 10, 3600.0  # without being asked; beyond that, something else is wrong


@dataclass(frozen=True, slots=True)
class FailedTransaction:
    """`lsn` is where its commit record begins, `at` is in seconds since 1970."""

    lsn: str
    at: float
    why: str
    skipped: bool


class FailedTransactions:
    """The recorded transactions of a source, kept in the store."""

    def __init__(self, source: SourceSettings, store: StoreWriter) -> None:
        self._source = source
        self._store = store
        self._key = f"poison {source.name}"

    def read(self) -> list[FailedTransaction]:
        """The newest last. Fields that only another version of headwater knows are left out."""
        return msgspec.json.decode(self._store.get_meta(self._key) or "[]", type=list[FailedTransaction])

    def skipped(self) -> frozenset[Lsn]:
        return frozenset(parse_lsn(failed.lsn) for failed in self.read() if failed.skipped)

    def record(self, lease: Lease, error: PoisonError) -> bool:
        """Record a transaction. Returns whether it is skipped from now on."""
        if error.lsn is None:
            return False
        lsn, now = format_lsn(error.lsn), time.time()
        known = self.read()
        if any(failed.skipped and failed.lsn == lsn for failed in known):
            return True  # somebody asked for that since the stream began
        lately = sum(failed.skipped and failed.at > now - _MOST_SKIPS_SECONDS for failed in known)
        skip = self._source.on_apply_error == "skip" and lately < _MOST_SKIPS
        if skip:
            self._mark_all_tables(lease, lsn)  # first: a skip without the marks would lose its changes
        others = [failed for failed in known if failed.lsn != lsn]
        self._write(lease, [*others, FailedTransaction(lsn, now, error.why, skip)])
        return skip

    def take_requests(self, lease: Lease) -> None:
        """Carry out requests of `headwater source skip`."""
        for request in self._store.open_requests(self._source.name):
            if request.kind != RequestKind.SKIP:
                continue
            lsn = str(orjson.loads(request.payload or "{}").get("lsn"))
            known = self.read()
            blocking = [failed.lsn for failed in known if not failed.skipped]
            if lsn in blocking:
                self._mark_all_tables(lease, lsn)
                self._write(lease, [replace(each, skipped=each.skipped or each.lsn == lsn) for each in known])
                state, result = RequestState.DONE, {"lsn": lsn}
            else:
                error = f"no transaction at {lsn} blocks the stream; blocking: {', '.join(blocking) or 'none'}"
                state, result = RequestState.FAILED, {"error": error}
            self._store.update_request(lease, request.id, state, result=orjson.dumps(result).decode())

    def clear(self, lease: Lease) -> None:
        """Delete the record, since the source has another history: its positions mean other transactions."""
        self._write(lease, ())

    def _write(self, lease: Lease, failed: Sequence[FailedTransaction]) -> None:
        self._store.set_meta(lease, self._key, orjson.dumps(failed[-_KEPT:]).decode())

    def _mark_all_tables(self, lease: Lease, lsn: str) -> None:
        distrust(self._store, lease, self._store.tables(self._source.name), ResyncReason(Cause.LEFT_OUT, lsn))
