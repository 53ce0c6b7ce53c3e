"""Settings of a connection that are others after a restart: devices go on, and get what differs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.oplog.lsn import ZERO
from headwater.replication.status import ReplicationState
from headwater.source.connect import SourceRefusedError
from headwater.source.slot import slot_name
from headwater.source.stream import ReplicationStream
from tests.integration.followed_source import SHOWN, FollowedSource, FollowSource
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import NOTES_AND_OTHERS
from tests.support.waiting import wait_until

ROWS = 50


@pytest.mark.parametrize("made", ["while it runs", "while it is stopped"])
def test_publication_added_and_removed(deploy: Deploy, source_db: SourceDb, made: str) -> None:
    source_db.execute("create table notes (id text primary key, body text)")
    source_db.execute("create table others (id text primary key, body text)")
    source_db.execute(f"insert into others select i::text, 'x' || i from generate_series(1, {ROWS}) i")
    source_db.execute(
        "insert into notes values ('1', 'one'), ('2', 'two'); create publication headwater for table notes"
    )
    deployment = deploy(NOTES_AND_OTHERS).start()
    device = Device(deployment)

    def right() -> bool:
        return device.rows() == published_rows(source_db, SHOWN, deployment.publications)

    assert right()
    before = deployment.op_count()
    more = "create publication more for table others; update notes set body = 'later' where id = '1'"
    if made == "while it runs":
        source_db.execute(more)
        deployment.caught_up()
    deployment.stop()
    if made == "while it is stopped":
        source_db.execute(more)
    deployment.publications = ("headwater", "more")
    deployment.start()
    wait_until(right, "the rows of the other publication")
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert deployment.op_count() - before == ROWS + 2, "a new bucket begins with an op of its own"
    source_db.execute("update others set body = 'live' where id = '7'; delete from others where id = '8'")
    deployment.caught_up()
    assert right()

    before = deployment.op_count()
    deployment.stop()
    deployment.publications = ("headwater",)
    deployment.start()
    wait_until(right, "the rows to go")
    wait_until(lambda: settled(deployment), "all to be done")
    assert deployment.op_count() - before == 1, "the bucket is the table's alone, and is cleared"
    source_db.execute("update notes set body = 'last' where id = '2'; update others set body = 'unseen'")
    deployment.caught_up()
    assert right()
    assert deployment.kinds().count("snapshot") == 1


def test_password_changed(follow_source: FollowSource, postgres_with: Callable[..., EmbeddedPostgres]) -> None:
    followed = follow_source(postgres_with())
    before = followed.deployment.op_count()
    hba = followed.server.data_dir / "pg_hba.conf"
    hba.write_text("host all follower 127.0.0.1/32 scram-sha-256\n" + hba.read_text(), encoding="utf-8")
    followed.sql("select pg_reload_conf(); alter role follower password 'rotated'")
    followed.disconnect()
    wait_until(lambda: followed.names("HW_2002", "rejects user name or password"), "the cause to be named")
    followed.deployment.stop()
    followed.sql("update notes set body = 'later' where id = '2'")

    followed.deployment.password = "mistyped"
    with pytest.raises(SourceRefusedError):
        followed.deployment.start()
    followed.deployment.stop()
    stopped = followed.deployment.health()
    assert stopped.state is ReplicationState.STOPPED
    assert stopped.cause is not None
    assert "set username and password in replication.connections" in stopped.cause.fix

    followed.deployment.password = "rotated"
    followed.deployment.start()
    followed.goes_on()
    assert followed.deployment.op_count() - before == 2
    assert followed.kinds() == ["snapshot"]


def slots(followed: FollowedSource) -> list[tuple[str, bool]]:
    return [
        (name, active) for name, active in followed.source.fetch("select slot_name, active from pg_replication_slots")
    ]


def test_slot_prefix_changed_on_restored_store(follow_source: FollowSource, tmp_path: Path) -> None:
    followed = follow_source()
    deployment = followed.deployment
    deployment.close()
    shutil.copytree(deployment.directory, tmp_path / "backup")
    deployment.start()
    followed.sql("update notes set body = 'later' where id = '2'")
    deployment.caught_up()
    deployment.close()
    shutil.rmtree(deployment.directory)
    shutil.copytree(tmp_path / "backup", deployment.directory)
    deployment.slot_prefix = "renamed_"
    deployment.start()
    assert Device(deployment).rows() == followed.truth()
    assert followed.kinds() == ["snapshot", "snapshot"], "it is behind what it acknowledged"
    assert slots(followed) == [(slot_name(deployment.settings), True)]


def test_slot_prefix_changed_replaces_slot(follow_source: FollowSource) -> None:
    followed = follow_source()
    deployment, before = followed.deployment, followed.deployment.op_count()
    deployment.stop()
    followed.sql("update notes set body = 'later' where id = '2'")
    deployment.slot_prefix = "renamed_"
    deployment.start()
    followed.goes_on()
    assert deployment.op_count() - before == 2
    assert followed.kinds() == ["snapshot", "re-sync"]
    assert slots(followed) == [(slot_name(deployment.settings), True)]
    wait_until(lambda: deployment.health().slot is not None, "a look at the slot")


def test_slot_prefix_changed_on_copy_keeps_slot(follow_source: FollowSource) -> None:
    followed = follow_source()
    deployment = followed.deployment
    deployment.stop_and_let_go()
    first = replace(deployment.settings, silence_seconds=60)
    ((name, _),) = slots(followed)
    with ReplicationStream(first, name, ZERO, first.publications):
        deployment.slot_prefix = "renamed_"
        deployment.start()
        followed.goes_on()
        assert sorted(slots(followed)) == [(name, True), (slot_name(deployment.settings), True)]
