"""What is told of bulk work while it runs is true: how many rows there are, what is waited for, what is being done."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.replication.status import ReplicationState, ReplicatorHealth, to_json
from headwater.storage.contract.store import RequestState
from tests.support.changed_source import unheard
from tests.support.command import headwater_here
from tests.support.fix_headwater import HASTY, Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import config_of
from tests.support.store_file import store_file
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

ROWS = 2_525


@pytest.fixture
def notes_source(source_db: SourceDb) -> SourceDb:
    """A table that the planner knows."""
    source_db.execute("create table notes (id int primary key, nr int not null, body text)")
    source_db.execute(f"insert into notes select i, i, 'x' from generate_series(1, {ROWS}) i; analyze notes")
    source_db.execute("create unique index nr on notes (nr)")
    return source_db


def told(deployment: Deployment, what: str) -> set[tuple[int, int]]:
    """Rows done at the end, and rows that were expected, as jobs of a kind were told of."""
    reports = [progress for progress in deployment.snapshots if progress.what == what]
    assert reports, f"nothing was told of a {what}"
    return {(max(report.rows for report in reports), report.rows_expected) for report in reports}


@pytest.mark.parametrize("on_postgres", [False, True], ids=["embedded", "postgres"])
def test_expected_rows_are_exact(deploy: Deploy, notes_source: SourceDb, on_postgres: bool) -> None:
    deployment = deploy(NOTES, on_postgres=on_postgres).start()
    assert told(deployment, "snapshot") == {(ROWS, ROWS)}
    assert deployment.ask("resync")["state"] == "done"
    assert told(deployment, "comparison") == {(2 * ROWS, 2 * ROWS)}  # of either side
    deployment.redeploy(NOTES.replace("*", "id"))
    assert told(deployment, "reprocess") == {(ROWS, ROWS)}
    notes_source.execute("alter table notes replica identity using index nr")
    wait_until(lambda: any(p.what == "re-key" and p.tasks for p in deployment.snapshots), "the re-key")
    assert told(deployment, "re-key") == {(ROWS, ROWS)}
    deployment.close()  # its schema goes before it


def test_expected_rows_of_grown_table(deploy: Deploy, notes_source: SourceDb) -> None:
    notes_source.execute(f"insert into notes select i, i, 'x' from generate_series({ROWS + 1}, {4 * ROWS}) i")
    ((rows, expected),) = told(deploy(NOTES).start(), "snapshot")
    assert rows == 4 * ROWS
    assert 3 * ROWS < expected < 5 * ROWS


def test_merge_progress_in_log_and_request(deploy: Deploy, notes_source: SourceDb) -> None:
    notes_source.execute(f"insert into notes select i, i, 'x' from generate_series({ROWS + 1}, 9000) i")
    deployment = deploy(NOTES, intervals=replace(HASTY, work=0.0)).start()
    with unheard(deployment):
        notes_source.execute("update notes set body = 'y'")
    heard: list[str] = []
    with deployment.store() as store:
        number = store.submit("resync", "default", "{}")
        while (request := store.request(number)) is not None and request.state is not RequestState.DONE:
            heard.append(request.progress)
            assert request.state is not RequestState.FAILED
            time.sleep(0.005)
    told = [progress for progress in deployment.snapshots if progress.what == "merge" and progress.rows]
    assert len(told) > 4
    assert [progress.rows for progress in told] == sorted(progress.rows for progress in told)
    assert (told[-1].rows, told[-1].over, told[-2].over) == (9000, True, False)
    pattern = r"compared (?:18,000 of about )?18,000 rows on both sides, merged (\d,\d+) rows, \1 of these differ"
    assert any(re.fullmatch(pattern, text) for text in heard), set(heard)
    wait_until(lambda: deployment.health().work == "", "the end to be noted")


def test_status_shows_current_work(deploy: Deploy, notes_source: SourceDb, tmp_path: Path) -> None:
    deployment = deploy(NOTES)
    (tmp_path / "headwater.yaml").write_text(json.dumps(config_of(deployment, 0)))
    with deployment.store() as store:
        lease = store.acquire("default", "here:1", 30.0)
        store.report_status(lease, to_json(ReplicatorHealth(ReplicationState.SNAPSHOT, 0, 0, work="starting Spark")))
        assert "\nwork      starting Spark\n" in headwater_here("source", "status", cwd=tmp_path).out
        told = json.loads(headwater_here("source", "status", "--json", cwd=tmp_path).out)
        assert told["replicator"]["work"] == "starting Spark"
        store.release(lease)
        assert "\nwork " not in headwater_here("source", "status", cwd=tmp_path).out, "whoever began it is gone"


def test_rebuilt_buckets_show_progress(deploy: Deploy, notes_source: SourceDb) -> None:
    deployment = deploy(NOTES).start()
    deployment.caught_up()
    deployment.stop()
    with store_file(deployment.directory) as db:
        db.execute("update buckets set checksum = (checksum + 1) & 4294967295")
    deployment.start()
    deployment.ask("audit", repair=True)
    told = [progress for progress in deployment.snapshots if progress.what == "rows put again"]
    assert [(progress.rows, progress.over) for progress in told][:2] == [(ROWS, False), (ROWS, True)]
