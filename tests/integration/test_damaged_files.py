"""Files of an embedded store that were damaged or taken away: what is said, and what goes on."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater.oplog.op import OpId
from headwater.storage.contract.parts import StagedPart
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.store import Lease, StoreError
from headwater.storage.contract.versions import Origin
from headwater.storage.open import open_store
from headwater.storage.sqlite.wake import wake_directory
from headwater.storage.sqlite.writer import SqliteWriter
from tests.integration.followed_source import SmallDisk
from tests.support.changed_source import Device
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.store_checker import leftovers
from tests.support.store_file import store_file
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

Damage = Callable[[Path], None]

ROWS = 300


@pytest.fixture
def stopped(deploy: Deploy, source_db: SourceDb) -> Deployment:
    """A store that has read the source, with nobody at work on it."""
    source_db.execute("create table notes (id text primary key, body text)")
    source_db.execute(f"insert into notes select i::text, 'body ' || i * i from generate_series(1, {ROWS}) i")
    deployment = deploy(NOTES).start()
    deployment.caught_up()
    deployment.close()
    return deployment


def changed(content: bytes, at: int) -> bytes:
    """The same, but for one bit."""
    return content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]


def test_flipped_bits_of_history_are_noticed(stopped: Deployment) -> None:
    stopped.whole = False
    places = random.Random(1)
    said: list[str] = []
    state = stopped.reader.newest()
    assert state is not None
    with store_file(stopped.directory) as db:
        number, whole = db.execute("select id, bodies from segment_blobs").fetchall()[0]
        assert isinstance(whole, bytes)
        (bucket,) = stopped.buckets("a")
        right = stopped.reader.chunk(bucket, OpId(0), state.checkpoint.op_id)
        turned = [*range(16), *places.sample(range(16, len(whole)), 50)]
        for at in turned:
            db.execute("update segment_blobs set bodies = ? where id = ?", (changed(whole, at), number))
            try:
                assert stopped.reader.chunk(bucket, OpId(0), state.checkpoint.op_id) == right
            except StoreError as error:
                said.append(str(error))
    assert len(said) >= len(turned) - 2  # some bits of the header mean nothing
    assert all("a segment of the history is damaged" in each for each in said)
    assert all("headwater audit --repair" in each for each in said)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


@pytest.mark.parametrize("damage", [remove, empty, halve, overwrite])
def test_damaged_part_is_not_a_damaged_store(
    stopped: Deployment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    hurt: list[str] = []

    def hurting(store: SqliteWriter, lease: Lease, part: StagedPart, *rest: Any) -> Checkpoint:
        if not hurt:
            damage(Path(part.path))
            hurt.append(part.path)
        return take_page(store, lease, part, *rest)

    take_page = SqliteWriter.take_page
    monkeypatch.setattr(SqliteWriter, "take_page", hurting)
    stopped.start()
    device = Device(stopped)
    stopped.redeploy(NOTES.replace("*", "id, body, 'new' AS more"))
    assert all(row["more"] == "new" for row in Device(stopped).rows().values())
    assert len(device.rows()) == ROWS
    assert "[HW_4009] a part of the bulk job is" in caplog.text
    assert hurt[0] in caplog.text
    assert "store.db" not in caplog.text
    stopped.close()
    assert stopped.problems() == []
    assert leftovers(stopped.directory) == {}


def test_damaged_part_of_first_snapshot_is_read_again(
    deploy: Deploy, source_db: SourceDb, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hurting(store: SqliteWriter, lease: Lease, parts: Sequence[StagedPart]) -> None:
        if "HW_4009" not in caplog.text:
            halve(Path(parts[0].path))
        stage(store, lease, parts)

    stage = SqliteWriter.stage
    monkeypatch.setattr(SqliteWriter, "stage", hurting)
    source_db.execute("create table notes (id text primary key, body text); insert into notes values ('1', 'one')")
    deployment = deploy(NOTES).start()
    assert len(deployment.rows("a")) == 1
    assert "[HW_4009] a part of the bulk job is damaged" in caplog.text


def test_devices_hear_of_commits_without_wakeups(
    stopped: Deployment, serve: Callable[[Deployment], Service], caplog: pytest.LogCaptureFixture
) -> None:
    wake = wake_directory(stopped.directory)
    shutil.rmtree(wake, ignore_errors=True)
    wake.touch()
    stopped.start()
    service = serve(stopped)
    stopped.source.execute("insert into notes values ('later', 'than the start')")
    assert ("notes", "later") in stopped.rows("a")
    assert "HW_5005" not in caplog.text
    service.stop()
    said = service.config.with_suffix(".log").read_text(encoding="utf-8")
    assert "commits reach devices up to a second late," in said
    assert "Traceback" not in said
    wake.unlink()


def test_full_disk_during_deploy(
    small_disk: Callable[[int], SmallDisk], deploy: Deploy, source_db: SourceDb, caplog: pytest.LogCaptureFixture
) -> None:
    disk = small_disk(10)
    source_db.execute("create table notes (id text primary key, body text)")
    source_db.execute(f"insert into notes select i::text, repeat(md5(i::text), 9) from generate_series(1, {ROWS}) i")
    deployment = deploy(NOTES, disk.path / "store").start()
    device = Device(deployment)
    yaml = NOTES.replace("*", "id, body, 'new' AS more")
    with deployment.store() as store:
        store.deploy(yaml, Origin.COMMAND)
        disk.fill()
        wait_until(lambda: "the disk is full" in caplog.text, "the cause to be named")
        disk.make_room()
    deployment.redeploy(yaml)
    assert all(row["more"] == "new" for row in device.rows().values())
    deployment.close()
    assert deployment.problems() == []
    assert leftovers(deployment.directory) == {}


def test_full_disk_during_first_snapshot(
    small_disk: Callable[[int], SmallDisk], deploy: Deploy, source_db: SourceDb
) -> None:
    disk = small_disk(4)
    source_db.execute("create table notes (id text primary key, body text)")
    source_db.execute("insert into notes select i::text, repeat(md5(i::text), 99) from generate_series(1, 9000) i")
    deployment = deploy(NOTES, disk.path / "store")
    with pytest.raises(StoreError, match=r"the disk is full.*part-.*-00000.*free space on it"):
        deployment.start()
    deployment.close()
    source_db.execute("delete from notes where length(id) > 2")
    deployment.start()
    assert len(Device(deployment).rows()) == len(source_db.fetch("select from notes"))
    deployment.close()
    assert deployment.problems() == []
    assert leftovers(deployment.directory) == {}


@pytest.mark.parametrize("damage", [halve, overwrite])
@pytest.mark.parametrize(
    ("name", "remedy"), [("store.db", "to build a new store"), ("write_checkpoints.db", "the store itself is intact")]
)
def test_damaged_store_is_named_and_replaced(stopped: Deployment, name: str, remedy: str, damage: Damage) -> None:
    open_store(stopped.address).open_reader().close()
    path = stopped.directory / name
    damage(path)
    with pytest.raises(StoreError, match=rf"{name}\); stop Headwater and move {name}, .*{remedy}"):
        open_store(stopped.address).open_reader()
    for file in stopped.directory.glob(f"{name}*"):
        file.rename(file.with_name("away"))
    stopped.start()
    assert len(stopped.rows("a")) == ROWS
    assert stopped.reader.create_write_checkpoint(["a/1"], {}) == {"a/1": 1}
    assert stopped.problems() == []
