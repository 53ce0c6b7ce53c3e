"""Changes of the sync config around a replicator that is away for a while: what is served then is SQL truth."""

from __future__ import annotations

import pytest

from headwater.storage.contract.versions import Origin, VersionState
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


NOTES = """
  notes:
    auto_subscribe: true
    query: SELECT id, body FROM notes WHERE owner = auth.user_id()
"""
TITLES = """
  titles:
    auto_subscribe: true
    query: SELECT id, title FROM notes AS titles WHERE owner = auth.user_id()
"""


def config(*streams: str, comment: str = "") -> str:
    return f"# {comment}\nconfig: {{edition: 3}}\nstreams:\n{''.join(streams)}"


@pytest.fixture
def notes(source_db: SourceDb) -> SourceDb:
    source_db.execute("create table notes (id text primary key, owner text, body text, title text)")
    source_db.execute("insert into notes select 'n' || i, 'a', 'body', 'title' from generate_series(1, 50) i")
    return source_db


def wait_served(deployment: Deployment) -> None:
    def served() -> bool:
        deployment.raise_failure()
        with deployment.store() as store:
            return all(version.state is not VersionState.PROCESSING for version in store.versions())

    wait_until(served, "the version to be served")


@pytest.mark.parametrize(
    "change", ["update notes set title = 'new' where id = 'n1'", pytest.param("truncate notes", marks=pytest.mark.long)]
)
def test_a_row_side_wanted_again_after_a_long_time_has_what_was_written_meanwhile(
    deploy: Deploy, notes: SourceDb, change: str
) -> None:
    deployment = deploy(config(NOTES, TITLES)).start()
    deployment.redeploy(config(NOTES))
    deployment.stop()
    deployment.keep_stopped = 0.0  # as if that had been long ago
    notes.execute(change)
    deployment.yaml = config(NOTES, TITLES, comment="again")
    with deployment.store() as store:
        store.deploy(deployment.yaml, Origin.COMMAND)
    deployment.start()
    wait_served(deployment)
    titles = {key[1]: row["title"] for key, row in deployment.rows("a").items() if key[0] == "titles"}
    assert titles == dict(notes.fetch("select id, title from notes"))
