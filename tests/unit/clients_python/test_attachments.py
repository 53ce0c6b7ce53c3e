"""Files that rows name come and go with them, offline too, and over crashes of the storage."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater_client import ATTACHMENTS, Attachment, AttachmentQueue, Database
from headwater_client.attachments import AttachmentState
from headwater_client.database.watch import QueryWatch
from tests.support.waiting import wait_until

SCHEMA = {"users": {"photo_id": "text"}, "attachments": ATTACHMENTS}
NAMED = "select photo_id as id, photo_id || '.jpg' as filename from users where photo_id is not null"

Start = Callable[..., AttachmentQueue]


class PlayedStorage:
    """A storage in memory, which can be away."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.away = False
        self.asked = threading.Event()

    def upload(self, attachment: Attachment, content: bytes) -> None:
        self._ask()
        self.files[attachment.filename] = content

    def download(self, attachment: Attachment) -> bytes:
        self._ask()
        return self.files[attachment.filename]

    def delete(self, attachment: Attachment) -> None:
        self._ask()
        self.files.pop(attachment.filename, None)

    def _ask(self) -> None:
        self.asked.set()
        if self.away:
            raise OSError("no network")


@pytest.fixture
def storage() -> PlayedStorage:
    return PlayedStorage()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "device.db", SCHEMA) as database:
        yield database


@pytest.fixture
def started(tmp_path: Path, database: Database, storage: PlayedStorage) -> Iterator[Start]:
    queues: list[AttachmentQueue] = []

    def start(**options: object) -> AttachmentQueue:
        queue = AttachmentQueue(database, storage, tmp_path / "files", NAMED, retry_delay=0.02, **options)  # type: ignore[arg-type]
        queue.start()
        queues.append(queue)
        return queue

    yield start
    for queue in queues:
        queue.stop()


def states(queue: AttachmentQueue) -> dict[str, AttachmentState]:
    return {each.filename: each.state for each in queue.all()}


def test_download(database: Database, storage: PlayedStorage, started: Start) -> None:
    storage.files["1.jpg"] = b"a photo"
    storage.away = True
    queue = started()
    database["users"].insert({"id": "ann", "photo_id": "1"})
    wait_until(storage.asked.is_set, "the storage asked")
    assert states(queue) == {"1.jpg": AttachmentState.QUEUED_DOWNLOAD}
    storage.away = False
    wait_until(lambda: states(queue) == {"1.jpg": AttachmentState.SYNCED}, "the file")
    path = queue.path(queue.get("1"))
    assert path is not None
    assert path.read_bytes() == b"a photo"


def test_upload(database: Database, storage: PlayedStorage, started: Start) -> None:
    storage.away = True
    queue = started()
    saved = queue.save(
        b"new", media_type="image/jpeg", then=lambda file: database["users"].insert({"id": "ben", "photo_id": file.id})
    )
    wait_until(storage.asked.is_set, "the storage asked")
    assert storage.files == {}
    assert database["users"].get("ben")["photo_id"] == saved.id
    storage.away = False
    wait_until(lambda: states(queue) == {saved.filename: AttachmentState.SYNCED}, "the upload")
    assert storage.files == {saved.filename: b"new"}


def test_archive(database: Database, storage: PlayedStorage, started: Start, tmp_path: Path) -> None:
    storage.files = {"1.jpg": b"1", "2.jpg": b"2"}
    queue = started(kept=1)
    for number in ("1", "2"):
        database["users"].insert({"id": number, "photo_id": number})
    wait_until(lambda: set(states(queue).values()) == {AttachmentState.SYNCED}, "both files")
    database["users"].delete("1")
    wait_until(lambda: states(queue)["1.jpg"] is AttachmentState.ARCHIVED, "the first given up")
    database["users"].delete("2")
    wait_until(lambda: states(queue) == {"2.jpg": AttachmentState.ARCHIVED}, "the older one gone")
    assert [file.read_bytes() for file in (tmp_path / "files").iterdir()] == [b"2"]
    database["users"].insert({"id": "3", "photo_id": "2"})
    wait_until(lambda: states(queue) == {"2.jpg": AttachmentState.SYNCED}, "the kept file is named again")


class Looks:
    """Holds the queue up between the news of a change and its look at the rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.ended, self._go_on = threading.Event(), threading.Event(), threading.Event()
        take = AttachmentQueue._take

        def held(queue: AttachmentQueue, watch: QueryWatch) -> None:
            self.begun.set()
            self._go_on.wait(60)
            take(queue, watch)
            self.ended.set()

        monkeypatch.setattr(AttachmentQueue, "_take", held)

    def go_on(self) -> None:
        self._go_on.set()


def test_delete_during_a_look(
    database: Database, storage: PlayedStorage, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = started()
    saved = queue.save(b"x", then=lambda file: database["users"].insert({"id": "1", "photo_id": file.id}))
    wait_until(lambda: states(queue) == {saved.filename: AttachmentState.SYNCED}, "the upload")
    queue.stop()
    looks = Looks(monkeypatch)
    queue.start()
    assert looks.begun.wait(60)
    queue.delete(saved.id, then=lambda _: database["users"].update("1", {"photo_id": None}))
    wait_until(lambda: not queue.all(), "the deletion")
    looks.go_on()
    assert looks.ended.wait(60)
    assert queue.all() == []


def test_rename_during_a_look(
    database: Database, storage: PlayedStorage, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.files["1.jpg"] = b"a photo"
    looks = Looks(monkeypatch)
    database["users"].insert({"id": "1", "photo_id": "1"})
    queue = started()
    assert looks.begun.wait(60)
    database["users"].update("1", {"photo_id": None})
    looks.go_on()
    assert looks.ended.wait(60)
    database["users"].update("1", {"photo_id": "1"})
    wait_until(lambda: states(queue) == {"1.jpg": AttachmentState.SYNCED}, "the file")


def test_delete(database: Database, storage: PlayedStorage, started: Start, tmp_path: Path) -> None:
    queue = started()
    saved = queue.save(b"x", then=lambda file: database["users"].insert({"id": "1", "photo_id": file.id}))
    wait_until(lambda: states(queue) == {saved.filename: AttachmentState.SYNCED}, "the upload")
    queue.delete(saved.id, then=lambda _: database["users"].update("1", {"photo_id": None}))
    wait_until(lambda: not queue.all(), "the deletion")
    assert storage.files == {}
    assert list((tmp_path / "files").iterdir()) == []


def test_path_stays_inside(database: Database, storage: PlayedStorage, started: Start, tmp_path: Path) -> None:
    storage.files["../../evil.jpg"] = b"x"
    queue = started()
    database["users"].insert({"id": "1", "photo_id": "../../evil"})
    wait_until(lambda: states(queue) == {"../../evil.jpg": AttachmentState.SYNCED}, "the file")
    path = queue.path(queue.get("../../evil"))
    assert path is not None
    assert path.parent == tmp_path / "files"
    assert not list(tmp_path.parent.glob("evil*"))


def test_files_of_the_same_name(database: Database, tmp_path: Path) -> None:
    class ById(PlayedStorage):
        def upload(self, attachment: Attachment, content: bytes) -> None:
            self._ask()
            self.files[attachment.id] = content

        def download(self, attachment: Attachment) -> bytes:
            self._ask()
            return self.files[attachment.id]

    storage = ById()
    storage.files["theirs"] = b"of another"
    storage.away = True
    named = "select photo_id as id, 'photo.jpg' as filename from users where photo_id is not null"
    queue = AttachmentQueue(database, storage, tmp_path / "files", named, retry_delay=0.02)
    database["users"].insert({"id": "1", "photo_id": "theirs"})
    queue.start()
    wait_until(storage.asked.is_set, "the storage asked")
    mine = queue.save(
        b"mine", filename="photo.jpg", then=lambda file: database["users"].insert({"id": "2", "photo_id": file.id})
    )
    storage.away = False
    wait_until(lambda: [each.state for each in queue.all()] == [AttachmentState.SYNCED] * 2, "both files")
    queue.stop()
    contents = {each.id: path.read_bytes() for each in queue.all() if (path := queue.path(each)) is not None}
    assert contents == storage.files == {mine.id: b"mine", "theirs": b"of another"}


def test_retry_after_an_error(
    database: Database, storage: PlayedStorage, started: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.files["1.jpg"] = b"a photo"
    for name in ("_take", "_drop"):
        monkeypatch.setattr(AttachmentQueue, name, once_broken(getattr(AttachmentQueue, name)))
    queue = started()
    database["users"].insert({"id": "ann", "photo_id": "1"})
    wait_until(lambda: states(queue) == {"1.jpg": AttachmentState.SYNCED}, "the file")


def once_broken(method: Callable[..., object]) -> Callable[..., object]:
    """As a full disk does."""
    broken = [True]

    def call(*arguments: object) -> object:
        if broken:
            broken.clear()
            raise OSError("no room")
        return method(*arguments)

    return call


def test_give_up_that_fails(database: Database, storage: PlayedStorage, started: Start) -> None:
    storage.files["2.jpg"] = b"there"

    def give_up(_: Attachment, __: Exception) -> bool:
        raise ValueError("undecided")

    queue = started(give_up=give_up)
    for number in ("1", "2"):
        database["users"].insert({"id": number, "photo_id": number})
    wait_until(lambda: states(queue).get("2.jpg") is AttachmentState.SYNCED, "the second file")


def test_save_whose_row_fails(started: Start, tmp_path: Path) -> None:
    def fail(_: Attachment) -> None:
        raise ValueError("no such user")

    queue = started()
    with pytest.raises(ValueError, match="no such user"):
        queue.save(b"x", then=fail)
    assert (queue.all(), list((tmp_path / "files").iterdir())) == ([], [])


def test_ids_of_any_characters(database: Database, storage: PlayedStorage, started: Start) -> None:
    ids = ["ann/1", "..", "Bob", "bob", "nul", "a" * 300, "x.\\y:z", "x." + "y" * 300]
    queue = started()
    for each in ids:
        storage.files[f"{each}.jpg"] = each.encode()
        database["users"].insert({"id": f"of {each}", "photo_id": each})
    wait_until(lambda: states(queue) == {f"{each}.jpg": AttachmentState.SYNCED for each in ids}, "the files", 20)
    paths = {each.id: queue.path(each) for each in queue.all()}
    assert {name: path.read_bytes() for name, path in paths.items() if path} == {each: each.encode() for each in ids}
    assert len({str(path).lower() for path in paths.values()}) == len(ids)


def test_close_ends_both_threads(database: Database, started: Start) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    started()
    mine = [thread for thread in threading.enumerate() if thread.ident not in before]
    assert len(mine) == 2
    database.close()
    wait_until(lambda: not any(thread.is_alive() for thread in mine), "the end of both", 10)
