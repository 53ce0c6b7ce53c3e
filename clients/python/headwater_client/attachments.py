"""Keeps the files that rows name: downloads what is missing, uploads what is new, and removes what no row names."""

from __future__ import annotations

import logging
import os
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol

from headwater_client.database.database import Database
from headwater_client.database.watch import QueryWatch
from headwater_client.errors import FileError
from headwater_client.schema import Table
from headwater_client.timeouts import Backoff

_SUFFIX: Final = re.compile(r"\.\w{1,16}", re.ASCII)


class Folder:
    """Files by name, within one folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def name_of(attachment_id: str, filename: str) -> str:
        """What a file is called here: any id becomes a name that every system takes, and no two ids the same."""
        suffix = Path(filename).suffix
        return sha256(str(attachment_id).encode()).hexdigest() + (suffix if _SUFFIX.fullmatch(suffix) else "")

    def path(self, name: str) -> Path:
        """Where the file is. Raises `FileError` for a name that leads out of the folder."""
        if not name or name != Path(name).name or name in {".", ".."}:
            raise FileError(f"{name!r} is not the name of a file within {self._path}")
        return self._path / name

    def write(self, name: str, content: bytes) -> None:
        """Write the file, which nobody sees half-written, also not after a crash."""
        target = self.path(name)
        handle, draft = tempfile.mkstemp(dir=self._path, prefix=".draft-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(draft).replace(target)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise

    def remove(self, name: str) -> None:
        """Remove the file, if it is there."""
        self.path(name).unlink(missing_ok=True)

    def remove_drafts(self) -> None:
        """Remove what a crash left half-written."""
        for draft in self._path.glob(".draft-*"):
            draft.unlink(missing_ok=True)


ATTACHMENTS: Final = Table(
    {
        "filename": "text",
        "local_uri": "text",
        "timestamp": "integer",
        "size": "integer",
        "media_type": "text",
        "state": "integer",
        "has_synced": "integer",
        "meta_data": "text",
    },
    local_only=True,
)
"""Goes into the schema, under the name `attachments`; the stock SDKs have the same columns."""


class AttachmentState(IntEnum):
    """What is to be done about a file."""

    QUEUED_UPLOAD = 0
    QUEUED_DOWNLOAD = 1
    QUEUED_DELETE = 2
    SYNCED = 3
    ARCHIVED = 4


@dataclass(frozen=True)
class Attachment:
    """One file. `local_path` is relative to the queue's folder, None while the file is not here; `size` in bytes."""

    id: str
    filename: str
    state: AttachmentState
    local_path: str | None = None
    size: int | None = None
    media_type: str | None = None
    meta_data: str | None = None
    has_synced: bool = False
    timestamp: float = 0.0

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Attachment:
        return cls(
            id=row["id"],
            filename=row["filename"],
            state=AttachmentState(row["state"]),
            local_path=row["local_uri"],
            size=row["size"],
            media_type=row["media_type"],
            meta_data=row["meta_data"],
            has_synced=bool(row["has_synced"]),
            timestamp=(row["timestamp"] or 0) / 1000,
        )

    def as_row(self) -> dict[str, object]:
        row = asdict(self) | {"state": int(self.state), "has_synced": int(self.has_synced)}
        row["local_uri"] = row.pop("local_path")
        return row | {"timestamp": int(self.timestamp * 1000)}


_log = logging.getLogger("headwater_client")

_RETRY: Final = 5.0
"""Seconds until failed work is tried again, at first."""

_LOOK: Final = 0.25
"""Seconds within which `stop` is noticed."""

_KEPT: Final = 100
"""So many files are kept that no row names any more, in case one is named again."""


class RemoteStorage(Protocol):
    """Where files are kept for all devices, such as a bucket of S3. Each method raises where it fails."""

    def upload(self, attachment: Attachment, content: bytes) -> None:
        """Store a file. The same may come again."""

    def download(self, attachment: Attachment) -> bytes:
        """The content of a file."""

    def delete(self, attachment: Attachment) -> None:
        """Remove a file, which may be gone already."""


class AttachmentQueue:
    """Works in a thread of its own between `start` and `stop`.

    `named` is a query for the files that rows name, with the columns `id` and `filename` and perhaps `media_type` and
    `meta_data`. The schema has `attachments` in it. `give_up` decides after an error whether the work is dropped.
    """

    def __init__(
        self,
        database: Database,
        remote: RemoteStorage,
        folder: str | Path,
        named: str,
        *,
        table: str = "attachments",
        retry_delay: float = _RETRY,
        kept: int = _KEPT,
        give_up: Callable[[Attachment, Exception], bool] = lambda _, __: False,
    ) -> None:
        self._database, self._remote, self._named = database, remote, named
        self._folder = Folder(Path(folder))
        self._table, self._retry_delay, self._kept, self._give_up = table, retry_delay, kept, give_up
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to follow the rows."""
        self._folder.remove_drafts()
        self._stopping.clear()
        self._threads = [
            threading.Thread(target=self._steadily, args=(work,), name="headwater-attachments", daemon=True)
            for work in (self._follow, self._work)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, after the file that is on its way."""
        self._stopping.set()
        self._wake.set()
        for thread in self._threads:
            thread.join()

    def save(
        self,
        content: bytes,
        *,
        filename: str | None = None,
        media_type: str | None = None,
        meta_data: str | None = None,
        then: Callable[[Attachment], object] = lambda _: None,
    ) -> Attachment:
        """Keep a new file, and queue it for upload. `then` writes the row that names it, in the same transaction."""
        row_id = str(uuid.uuid4())
        name = filename or row_id
        local = self._folder.name_of(row_id, name)
        self._folder.write(local, content)
        state, now = AttachmentState.QUEUED_UPLOAD, time.time()
        attachment = Attachment(row_id, name, state, local, len(content), media_type, meta_data, timestamp=now)
        try:
            with self._database.atomic():
                self._put(attachment)
                then(attachment)
        except BaseException:
            self._folder.remove(local)
            raise
        self._wake.set()
        return attachment

    def delete(self, attachment_id: str, then: Callable[[Attachment], object] = lambda _: None) -> None:
        """Remove a file, here and remotely. `then` writes to the row that named it, in the same transaction."""
        with self._database.atomic():
            attachment = replace(self.get(attachment_id), state=AttachmentState.QUEUED_DELETE)
            self._put(attachment)
            then(attachment)
        self._wake.set()

    def get(self, attachment_id: str) -> Attachment:
        """What is known of a file. Raises sqlite-utils' `NotFoundError`."""
        return Attachment.of_row(self._database[self._table].get(attachment_id))

    def all(self) -> list[Attachment]:
        """Every file that is known."""
        return [Attachment.of_row(row) for row in self._database[self._table].rows_where(order_by="timestamp, id")]

    def path(self, attachment: Attachment) -> Path | None:
        """Where the file is, or None while it is not here."""
        path = None if attachment.local_path is None else self._folder.path(attachment.local_path)
        return path if path is not None and path.exists() else None

    def _steadily(self, work: Callable[[], None]) -> None:
        """Work until `stop`, or until the database is closed: what fails, as on a full disk, is begun again."""
        backoff = Backoff(self._retry_delay)
        while not self._ended():
            self._try(work)
            self._stopping.wait(0 if self._ended() else backoff.next())

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - of SQLite, of the folder, or of a driver for encrypted files
            if not self._ended():
                _log.exception("attachments failed, trying again")

    def _ended(self) -> bool:
        return self._stopping.is_set() or self._database.closed

    def _follow(self) -> None:
        """Take up each change of what the rows name."""
        watch = self._database.watching(self._named)
        while not self._ended():
            if watch.next(_LOOK) is not None:
                self._take(watch)
                self._wake.set()
        self._wake.set()  # the other thread is to end, too

    def _take(self, watch: QueryWatch) -> None:
        with self._database.atomic():
            # Read here: what was read before may name files that were deleted since
            new: dict[str, Any] = {"state": AttachmentState.QUEUED_DOWNLOAD, "timestamp": time.time()}
            named = {row["id"]: Attachment(**row, **new) for row in watch.now() if row["id"] is not None}
            known = {each.id: each for each in self.all()}
            for each in named.values():
                self._take_named(each, known.get(each.id))
            for attachment in known.values():
                # One that waits for upload may be named by a row that is not written yet
                archived = attachment.state in {AttachmentState.SYNCED, AttachmentState.QUEUED_DOWNLOAD}
                if archived and attachment.id not in named:
                    self._put(replace(attachment, state=AttachmentState.ARCHIVED, timestamp=time.time()))

    def _take_named(self, named: Attachment, known: Attachment | None) -> None:
        if known is None:
            self._put(named)
        elif known.state is AttachmentState.ARCHIVED:
            state = AttachmentState.SYNCED if self.path(known) is not None else AttachmentState.QUEUED_DOWNLOAD
            self._put(replace(known, state=state))
        elif known.state is AttachmentState.SYNCED and self.path(known) is None:
            self._put(replace(known, state=AttachmentState.QUEUED_DOWNLOAD, local_path=None))

    def _work(self) -> None:
        backoff = Backoff(self._retry_delay)
        while not self._ended():
            self._wake.clear()
            failed = [each for each in self.all() if not self._ended() and not self._do(each)]
            self._drop(each for each in self.all() if each.state is AttachmentState.ARCHIVED)
            if not failed:
                backoff.succeeded()
            self._wake.wait(backoff.next() if failed else None)

    def _do(self, attachment: Attachment) -> bool:
        """Do what is to be done about a file; whether that went well."""
        try:
            match attachment.state:
                case AttachmentState.QUEUED_UPLOAD:
                    self._upload(attachment)
                case AttachmentState.QUEUED_DOWNLOAD:
                    self._download(attachment)
                case AttachmentState.QUEUED_DELETE:
                    self._remote.delete(attachment)
                    self._forget(attachment)
                case AttachmentState.SYNCED | AttachmentState.ARCHIVED:
                    pass
        except Exception as error:  # noqa: BLE001 - a storage of the app's may raise anything, and is tried again
            _log.warning("attachment %s: %s", attachment.id, error)
            if self._gives_up(attachment, error):
                self._put(replace(attachment, state=AttachmentState.ARCHIVED))
                return True
            return False
        return True

    def _gives_up(self, attachment: Attachment, error: Exception) -> bool:
        try:
            return self._give_up(attachment, error)
        except Exception:  # noqa: BLE001 - the other files are to be looked at, too
            _log.exception("what decides about attachment %s failed", attachment.id)
            return False

    def _upload(self, attachment: Attachment) -> None:
        assert attachment.local_path is not None
        self._remote.upload(attachment, self._folder.path(attachment.local_path).read_bytes())
        self._done(attachment)

    def _download(self, attachment: Attachment) -> None:
        content = self._remote.download(attachment)
        local = self._folder.name_of(attachment.id, attachment.filename)
        self._folder.write(local, content)
        self._done(replace(attachment, local_path=local, size=len(content)))

    def _done(self, attachment: Attachment) -> None:
        """Note it, unless the app has requested something else meanwhile."""
        with self._database.atomic():
            found = list(self._database[self._table].rows_where("id = ?", [attachment.id]))
            if found and Attachment.of_row(found[0]).state is attachment.state:
                self._put(replace(attachment, state=AttachmentState.SYNCED, has_synced=True, timestamp=time.time()))

    def _drop(self, archived: Iterable[Attachment]) -> None:
        """Remove the oldest files that no row names."""
        for attachment in sorted(archived, key=lambda each: each.timestamp, reverse=True)[self._kept :]:
            self._forget(attachment)

    def _forget(self, attachment: Attachment) -> None:
        self._database[self._table].delete_where("id = ?", [attachment.id])
        if attachment.local_path is not None:
            self._folder.remove(attachment.local_path)

    def _put(self, attachment: Attachment) -> None:
        self._database[self._table].upsert(attachment.as_row())
