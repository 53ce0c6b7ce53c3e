"""A device's file as the sync loop uses it: each call is one transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from headwater_client.errors import RetiredError
from headwater_client.protocol.lines import Data
from headwater_client.protocol.session import BeginCheckpoint, CheckpointTarget, Finish, FinishOutcome, RequestedStream
from headwater_client.schema import RawTable
from headwater_client.storage import apply, buckets, layout, streams, uploads
from headwater_client.storage.connection import retire_by, writing

_MICRO = 1_000_000
_JOURNAL_PAGES = 16_000

_STEPS = 2_000_000
"""Of SQLite's machine, between looks at whether sync was ended: some hundredths of a second."""


@dataclass(frozen=True)
class BucketProgress:
    """How far the download of a bucket is: `at_last` operations shown, `since_last` come since, `target` in all."""

    priority: int
    at_last: int
    since_last: int
    target: int


@dataclass(frozen=True)
class Synced:
    """When a priority was last complete, in seconds since 1970; None in place of a priority is all of them."""

    priority: int | None
    last_synced_at: float


class DeviceStore:
    """One writer of one file. `raw` are the tables that the app keeps itself.

    Once `retired` is set it stores nothing any more: `begin`, `save` and `finish` raise `RetiredError`, also half-way.
    """

    def __init__(
        self, connection: sqlite3.Connection, raw: Mapping[str, RawTable], retired: threading.Event | None = None
    ) -> None:
        apply.prepare(connection)
        buckets.prepare_bulk(connection)
        # A download commits some megabytes at a time: its journal need not be worked off after each
        connection.execute(f"PRAGMA wal_autocheckpoint = {_JOURNAL_PAGES}").fetchall()
        self.connection = connection
        self.retired = retired or threading.Event()
        retire_by(connection, self.retired)
        connection.set_progress_handler(self.retired.is_set, _STEPS)
        self._raw = raw

    @contextmanager
    def _writing(self) -> Iterator[None]:
        ended = RetiredError("sync was ended; this comes again with the next connection")
        try:
            with writing(self.connection):
                # Asked within the transaction: while it waited for its turn the file may have been cleared
                if self.retired.is_set():
                    raise ended
                yield
        except self.connection.OperationalError as error:
            if self.retired.is_set():
                raise ended from error
            raise

    def client_id(self) -> str:
        return layout.client_id(self.connection)

    def positions(self) -> dict[str, int]:
        return buckets.positions(self.connection)

    def begin(self, what: BeginCheckpoint, *, include_defaults: bool) -> None:
        """Take up a new checkpoint."""
        with self._writing():
            buckets.begin(self.connection, what.target.buckets, what.removed)
            if what.streams is not None:
                streams.note_streams(self.connection, what.streams, include_defaults)
            buckets.begin_bulk_if_large(self.connection, self._incoming(what.target))

    def save(self, chunks: Sequence[Data]) -> None:
        """Store operations, all or none."""
        with self._writing():
            for chunk in chunks:
                buckets.save(self.connection, chunk)

    def finish(self, what: Finish, now: float) -> apply.Applied:
        """Show a checkpoint, if its checksums are right and no local write hides it. `now` in seconds since 1970."""
        moment = int(now * _MICRO)
        with self._writing():
            applied = apply.apply(self.connection, what.target, what.priority, self._raw, moment)
            if applied.outcome is FinishOutcome.APPLIED and what.priority is None:
                streams.note_synced(self.connection, moment)
            elif applied.outcome is FinishOutcome.APPLIED:
                buckets.begin_bulk_if_large(self.connection, self._incoming(what.target))
        return applied

    def _incoming(self, target: CheckpointTarget) -> int:
        return sum(max(0, each.target - each.at_last - each.since_last) for each in self.progress(target).values())

    def requested_streams(self, held: Collection[streams.StreamKey], now: float) -> list[RequestedStream]:
        """What to ask the server for, without what has expired."""
        streams.keep_alive(self.connection, held, now)
        streams.drop_expired(self.connection, held, now)
        return streams.requested(self.connection)

    def progress(self, target: CheckpointTarget) -> dict[str, BucketProgress]:
        """How far the download of each bucket is."""
        stored = {each.name: each for each in buckets.stored(self.connection)}
        progress = {}
        for name, wanted in target.buckets.items():
            each = stored.get(name)
            at_last, since_last = (0, 0) if each is None else (each.count_at_last, each.count_since_last)
            progress[name] = BucketProgress(wanted.priority, at_last, since_last, wanted.count)
        return progress


def synced(connection: sqlite3.Connection) -> list[Synced]:
    """When which priority was last complete."""
    rows = connection.execute("SELECT priority, last_synced_at FROM ps_sync_state ORDER BY priority")
    return [
        Synced(None if priority == layout.FULL_SYNC else priority, moment / _MICRO)
        for priority, moment in rows.fetchall()
    ]


def clear(connection: sqlite3.Connection, raw: Mapping[str, RawTable], *, local: bool) -> None:
    """Remove synced rows, the upload queue and what is known of the server; with `local` local-only rows too.

    Subscriptions stay, since the app asks for them, and so do the client id and the number of its newest request.
    """
    with writing(connection):
        tables = ["ps_oplog", "ps_buckets", "ps_updated_rows", "ps_untyped", "ps_crud", "ps_sync_state"]
        tables += ["headwater_removed", *layout.synced_tables(connection).values()]
        tables += layout.local_tables(connection) if local else []
        for table in tables:
            connection.execute(f'DELETE FROM "{table}"')
        connection.execute(
            "DELETE FROM ps_kv WHERE key NOT IN ('client_id', 'powersync_js_migrated_subkeys', ?)", (uploads.REQUEST,)
        )
        connection.execute("UPDATE ps_stream_subscriptions SET active = 0, is_default = 0, last_synced_at = NULL")
        connection.execute("DELETE FROM ps_stream_subscriptions WHERE ttl IS NULL")
        for each in raw.values():
            if each.clear is not None:
                connection.execute(each.clear)
