"""Transactions of the source that can't be applied: identified one by one, recorded, and skipped if that is allowed.
The comparison of all tables that follows brings their changes, so nothing is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import orjson
import psycopg

from headwater.decode.pgoutput import Decoder, Payload
from headwater.decode.wire import DecodeError
from headwater.errors import HeadwaterError, machine_error
from headwater.oplog.limits import REFUSED_NAMED
from headwater.oplog.lsn import Lsn, format_lsn, parse_lsn
from headwater.replication.errors import PoisonError
from headwater.replication.requests import RequestKind
from headwater.replication.stream.apply import Applier
from headwater.replication.tables.changes import distrust
from headwater.source.connect import SourceSettings
from headwater.source.rows.generated import NotComputableError
from headwater.storage.backend import Store
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.requests import RequestState
from headwater.storage.contract.store import Lease

_log = logging.getLogger(__name__)

_OF_THE_TRANSACTION = (DecodeError, NotComputableError)
"""Errors of ours that mean that a transaction can't be applied."""

_KEPT = 50
_BY_ITSELF, _BY_ITSELF_SECONDS = 10, 3600.0  # beyond that, something else is wrong


class StreamIntake:
    """Decodes and applies batches of the stream. After a batch that failed for no outside reason, the next attempt
    applies transactions one by one up to `careful_until`, and so identifies the one that fails. An error of this
    machine, such as a full disk, is an outside reason, however it shows."""

    def __init__(self, applier: Applier, careful_until: Lsn) -> None:
        self._decoder = Decoder()
        self._decode = self._decoder.decode
        self.applier = applier
        self._careful_until = careful_until
        applier.careful = applier.position <= careful_until

    def take(self, payloads: list[Payload], size: int) -> None:
        """Apply messages that have `size` bytes together, and take them out of the list. Raises PoisonError, without
        `lsn` while it is not known which transaction fails, and what `Applier.consume` raises."""
        with self._as_poison():
            try:
                messages = self._decode(payloads)
            except DecodeError:
                self._one_by_one(payloads)
            else:
                payloads.clear()  # before the rows are copied again
                self.applier.consume(messages, size)
        if self._decoder.left_out:
            self._tell_left_out()

    def _tell_left_out(self) -> None:
        rows = [row for row in self._decoder.left_out if self.applier.follows(row.relation.oid)]
        self._decoder.left_out.clear()
        for row in rows[:REFUSED_NAMED]:
            _log.error("%s", row)

    def settle(self, received: Lsn, *, idle: bool) -> None:
        """See `Applier.settle`. Raises what `take` raises."""
        with self._as_poison():
            self.applier.settle(received, idle=idle)
        if self.applier.careful and self.applier.position > self._careful_until:
            self.applier.careful = False

    @contextmanager
    def _as_poison(self) -> Iterator[None]:
        try:
            yield
        except _OF_THE_TRANSACTION as error:
            raise (machine_error(error) or self._poison(str(error))) from error
        except (HeadwaterError, psycopg.Error):
            raise
        except Exception as error:
            why = f"{type(error).__name__} in {_place(error)}"
            raise (machine_error(error) or self._poison(why)) from error

    def _one_by_one(self, payloads: Sequence[Payload]) -> None:
        """Apply messages singly, passing over those of a skipped transaction that can't be decoded."""
        self.applier.careful = True
        for payload in payloads:
            try:
                messages = self._decode([payload])
            except DecodeError:
                if self.applier.skipping:
                    continue
                raise
            self.applier.consume(messages, len(payload))

    def _poison(self, why: str) -> PoisonError:
        lsn = self.applier.final_lsn
        known = self.applier.careful and self.applier.in_transaction
        return PoisonError(why, self.applier.tag, lsn if known else None, upto=lsn)


def _place(error: BaseException) -> str:
    """The function and line that raised it. Its message could contain values of rows."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "unknown" if trace is None else f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"


@dataclass(frozen=True, slots=True)
class Poison:
    """A recorded transaction. `lsn` is where its commit record begins, `at` is in seconds since 1970."""

    lsn: str
    at: float
    why: str
    skipped: bool


class FailedTransactions:
    """The recorded transactions of a source, kept in the store."""

    def __init__(self, source: SourceSettings, store: Store) -> None:
        self._source = source
        self._store = store

    def read(self) -> list[Poison]:
        """The newest last."""
        return [Poison(**entry) for entry in orjson.loads(self._store.noted(self._key) or "[]")]

    @property
    def _key(self) -> str:
        return f"poison {self._source.tag}"

    def skipped(self) -> frozenset[Lsn]:
        """Transactions to skip."""
        return frozenset(parse_lsn(poison.lsn) for poison in self.read() if poison.skipped)

    def note(self, lease: Lease, error: PoisonError) -> bool:
        """Record a transaction. Returns whether it is skipped from now on."""
        if error.lsn is None:
            return False
        lsn, now = format_lsn(error.lsn), time.time()
        known = self.read()
        lately = sum(poison.skipped and poison.at > now - _BY_ITSELF_SECONDS for poison in known)
        skip = self._source.poison_changes == "skip" and lately < _BY_ITSELF
        if error.lsn in self.skipped():
            return True  # somebody asked for that since the stream began
        if skip:
            self._compare_all(lease, lsn)  # first: a skip without the marks would lose its changes
        self._write(lease, [p for p in known if p.lsn != lsn] + [Poison(lsn, now, error.why, skip)])
        return skip

    def take_requests(self, lease: Lease) -> None:
        """Carry out requests of `headwater source skip`."""
        for request in self._store.open_requests(self._source.tag):
            if request.kind != RequestKind.SKIP:
                continue
            wanted = str(orjson.loads(request.payload or "{}").get("lsn"))
            known = self.read()
            stuck = [poison.lsn for poison in known if not poison.skipped]
            if wanted not in stuck:
                error = f"no transaction at {wanted} blocks the stream; blocking: {', '.join(stuck) or 'none'}"
                answer = orjson.dumps({"error": error}).decode()
                self._store.update_request(lease, request.id, RequestState.FAILED, result=answer)
                continue
            self._compare_all(lease, wanted)
            self._write(lease, [Poison(p.lsn, p.at, p.why, p.skipped or p.lsn == wanted) for p in known])
            answer = orjson.dumps({"lsn": wanted}).decode()
            self._store.update_request(lease, request.id, RequestState.DONE, result=answer)

    def forget(self, lease: Lease) -> None:
        """Delete the record, since the source has another history: its positions mean other transactions."""
        self._write(lease, ())

    def _write(self, lease: Lease, poisons: Sequence[Poison]) -> None:
        self._store.note(lease, self._key, orjson.dumps([asdict(poison) for poison in poisons[-_KEPT:]]).decode())

    def _compare_all(self, lease: Lease, lsn: str) -> None:
        reason = ResyncReason(Cause.LEFT_OUT, str(lsn))
        distrust(self._store, lease, self._store.tables(self._source.tag), reason)
