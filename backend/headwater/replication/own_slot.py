"""Finds and makes the replication slot of a store. A store owns the slot whose name it noted before it made it. Other
slots are left alone, except one of the name that a store needs for a new slot: unused ones are taken over by a store
that has not followed the source yet, used ones only with `--take-slot`.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from dataclasses import dataclass, replace

import msgspec
import orjson
import psycopg

from headwater.source.connect import SourceSettings, connect, connection_error, dial, wait_for
from headwater.source.slot import (
    SlotExistsError,
    SlotForeignError,
    SlotStatus,
    SnapshotKeeper,
    SystemIdentity,
    claim_slot,
    claims_of_others,
    database_oid,
    drop_slot,
    drop_unread_slot,
    end_reader,
    end_sessions,
    slot_busy_error,
    slot_name,
    slot_status,
    system_identity,
)
from headwater.storage.contract.store import Lease
from headwater.storage.sql.writer import StoreWriter

_log = logging.getLogger(__name__)

_ENDING_SECONDS = 1.0  # Postgres needs a moment to notice that a service has ended
_LAST_SECONDS = 10.0  # for the stream to come to its end, once the source shuts down
_SHUTTING_DOWN = psycopg.errors.CannotConnectNow.sqlstate
_AGAIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SlotNote:
    """What a store noted about its slot. `prefix` is the slot_name_prefix that the name was made with, None if unknown;
    `taken` says that another service has taken the slot over. `database` is the oid of the database that it is in, 0 if
    unknown."""

    name: str = ""
    prefix: str | None = None
    taken: bool = False
    database: int = 0


def slot_note(source: str, store: StoreWriter) -> SlotNote:
    """What the store noted of a source; fields that an earlier version did not note have their defaults. An imported
    store has no note: it owns the slot that it followed."""
    text = store.get_meta(_key(source))
    if text:
        return msgspec.json.decode(text, type=SlotNote)
    state = store.source_state(source)
    return SlotNote(state.slot if state is not None else "")


def slot_of(source: SourceSettings, store: StoreWriter) -> str:
    """The name of the store's slot, made or still to be made: the noted one, unless slot_name_prefix was changed
    since."""
    note = slot_note(source.name, store)
    return note.name if note.prefix == source.slot_prefix else slot_name(source)


def _key(source: str) -> str:
    return f"slot {source}"


class OwnSlot:
    """The slot of the store, during one attempt to follow the source, which ends when `stop` is set. Other services see
    that it is in use. With `take`, the slot of this name in our database becomes the store's, even if another service
    uses it."""

    def __init__(
        self, source: SourceSettings, store: StoreWriter, lease: Lease, *, take: bool, stop: threading.Event
    ) -> None:
        self._source = source
        self._store = store
        self._lease = lease
        self._conn = connect(source, application_name=_SESSION)
        self._take = take
        self._stop = stop
        self._claimed = ""
        self._ended_at: float | None = None  # on the monotonic clock, when our session was found to have ended
        self._try_at = 0.0
        self._store_id = hashlib.blake2b(store.keys().secret, digest_size=8, person=b"slot").hexdigest()

    @property
    def name(self) -> str:
        """See `slot_of`."""
        return slot_of(self._source, self._store)

    @property
    def database(self) -> int:
        """The oid of the database that the slot was made in, 0 if unknown."""
        return slot_note(self._source.name, self._store).database

    def cluster(self) -> SystemIdentity:
        """The cluster that slots are made in now."""
        return system_identity(self._conn)

    def close(self) -> None:
        """End the session, and the claim with it."""
        self._conn.close()

    def keep(self) -> None:
        """Claim the slot again if our session has ended. Call this often while the stream is followed.

        When it ended since the source shuts down, Postgres waits until the stream has brought everything and all is
        confirmed. That may take the source offline for as long as a large transaction is applied, so it gets some
        seconds only: then SourceUnreachableError is raised. Also raises what `claim` raises."""
        if self._ended_at is None:
            if not _has_ended(self._conn):
                return
            self._conn.close()
            self._ended_at = time.monotonic()
        now = time.monotonic()
        if now < self._try_at:
            return
        self._try_at = now + _AGAIN_SECONDS
        try:
            dial(self._source, _SESSION).finish()
        except psycopg.Error as error:
            if error.sqlstate == _SHUTTING_DOWN:  # otherwise, if the source is gone, the stream breaks too
                self._try_at = min(self._try_at, self._ended_at + _LAST_SECONDS)
                if now >= self._ended_at + _LAST_SECONDS:
                    raise connection_error(self._source, error) from error
            return
        self._conn, self._ended_at = connect(self._source, application_name=_SESSION), None
        if self._claimed and not self.claim(self._claimed):
            raise slot_busy_error(self._claimed, self._source.address)

    def find(self, name: str) -> SlotStatus | None:
        """The slot of that name, None if there is none in our database."""
        slot = slot_status(self._conn, name)
        return slot if slot is not None and slot.database == self._conn.info.dbname else None

    def claim(self, name: str) -> bool:
        """Claim the slot, which exists and was ours. False when it has to be made again, since another service had it.
        Raises SlotForeignError when another service has it and `take` is off."""
        note = slot_note(self._source.name, self._store)
        used = bool(claims_of_others(self._conn, name, self._store_id))
        if not used and not note.taken:
            self._claim(name)
            if not note.database:  # an earlier version did not note it
                self._write(replace(note, database=database_oid(self._conn)))
            return True
        if not note.taken:
            self._write(replace(note, taken=True))  # it stays theirs even while they are not connected
        if not self._take:
            raise self._foreign(name, "is used by another service" if used else "was taken over by another service")
        return False

    def make(self) -> SnapshotKeeper:
        """Make a new slot and drop the old one. Raises SlotForeignError when another service has the name."""
        before = slot_note(self._source.name, self._store)
        name = self._free_name()
        if before.name != name and not before.taken and not claims_of_others(self._conn, before.name, self._store_id):
            # Of an older configuration, or of the store that ours is a copy of
            drop_unread_slot(self._conn, before.name)
        self._make_room(name, ours=before.name == name and not before.taken)
        self._write(SlotNote(name, self._source.slot_prefix, database=database_oid(self._conn)))
        self._claim(name)
        try:
            return SnapshotKeeper(self._source, name, stop=self._stop)
        except SlotExistsError:
            self._write(before)
            raise

    def _claim(self, name: str) -> None:
        claim_slot(self._conn, name, self._store_id)
        self._claimed = name

    def _free_name(self) -> str:
        """The name to use: another than the noted one where a slot of another database has that."""
        name = self.name
        return name if slot_status(self._conn, name) is None or self.find(name) else slot_name(self._source)

    def _make_room(self, name: str, *, ours: bool) -> None:
        slot = slot_status(self._conn, name)
        if slot is not None and slot.database != self._conn.info.dbname and ours:
            drop_slot(self._conn, name, stray=True)  # its database was replaced by a copy, which is ours now
            slot = None
        if slot is not None and slot.database != self._conn.info.dbname:
            whose = f"database {slot.database}" if slot.database else "a standby"
            fix = "give this service a slot_name_prefix of its own"
            raise SlotForeignError(f'the slot "{name}" belongs to {whose}', self._source.address, fix)
        deadline = time.monotonic() + _ENDING_SECONDS
        while (users := self._users(name, ours=ours)) and not self._take:
            if time.monotonic() > deadline:
                raise self._foreign(name, "is used by another service")
            time.sleep(0.05)
        if slot is not None and not ours:
            if not self._take and self._store.source_state(self._source.name) is not None:
                raise self._foreign(name, "was made by another service")
            _log.warning('the slot "%s" was there already and is taken over: it is dropped and made again', name)
        end_sessions(self._conn, users)
        end_reader(self._conn, name)
        drop_slot(self._conn, name)

    def _users(self, name: str, *, ours: bool) -> set[int]:
        """Pids of other services' sessions that use the slot."""
        slot = None if ours else slot_status(self._conn, name)
        reader = {slot.active_pid} if slot is not None and slot.active_pid is not None else set[int]()
        return reader | set(claims_of_others(self._conn, name, self._store_id))

    def _foreign(self, name: str, what: str) -> SlotForeignError:
        fix = "stop that service and start this one with --take-slot, or give this one a slot_name_prefix of its own"
        return SlotForeignError(f'the slot "{name}" {what}', self._source.address, fix)

    def _write(self, note: SlotNote) -> None:
        self._store.set_meta(self._lease, _key(self._source.name), orjson.dumps(note).decode())

    def adopt(self) -> None:
        """Write the note that an import did not write, before anything is changed."""
        note = slot_note(self._source.name, self._store)
        if note.name and not self._store.get_meta(_key(self._source.name)):
            self._write(note)


_SESSION = "headwater slot"


def _has_ended(conn: psycopg.Connection) -> bool:
    """Whether the server has ended an idle session."""
    try:
        while wait_for(conn.pgconn, 0):
            conn.pgconn.consume_input()
    except psycopg.Error:
        return True
    return False
