"""Tables of which the store may have rows from before a change that nobody saw: they are distrusted as long as that is
so, and no longer, and that costs no other row anything."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg

from headwater.bulk.contract import ReprocessJob
from headwater.pipeline.jobs import BulkJobs, Report
from headwater.storage.contract.parts import BulkOutcome
from tests.integration.test_completed_rows import Waiting
from tests.integration.test_locked_tables import locked
from tests.support.changed_source import Device, compared, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment, wait_until
from tests.support.local_bulk import LocalEngine

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


CONFIG = """
config: {edition: 3}
streams:
  all:
    auto_subscribe: true
    query: SELECT * FROM live
  others: {auto_subscribe: true, query: SELECT * FROM others}
"""
SHOWN = {"public.live": "true"}
UNSEEN = (
    "begin; alter table live rename to resting; update resting set body = repeat('unseen', 2000);"
    " alter table resting rename to live; commit"
)
"""A change that the stream tells of under a private name: a comparison has to bring what it left."""


def create(source: SourceDb) -> None:
    source.execute("create table live (id text primary key, n int, body text)")
    source.execute("alter table live alter body set storage external; create publication headwater for table live")
    source.execute("create table others (id text primary key); alter publication headwater add table others")


def asked(deployment: Deployment, kind: str, **payload: object) -> threading.Thread:
    """A command that waits for its result beside the test."""
    command = threading.Thread(target=deployment.ask, args=(kind,), kwargs=payload, daemon=True)
    command.start()
    return command


def audit_begun(deployment: Deployment) -> bool:
    with deployment.store() as store:
        return any(request.progress for request in store.open_requests("default"))


def test_a_table_that_an_audit_has_put_right_is_trusted_again(deploy: Deploy, source_db: SourceDb) -> None:
    create(source_db)
    source_db.execute("insert into live values ('1', 0, repeat('toast', 2000))")
    deployment = deploy(CONFIG)
    device = Device(deployment.start())
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # the audit's snapshot waits for it to end
        audit = asked(deployment, "audit", repair=True)
        wait_until(lambda: audit_begun(deployment), "the audit to begin")
        source_db.execute(UNSEEN)
        wait_until(lambda: compared(deployment), "the table to be marked")
    audit.join(60)
    assert settled(deployment)
    kinds = [record.kind for record in deployment.bulk_records()]
    assert kinds == ["snapshot", "re-sync", "verification"], "the audit is the comparison that the table waited for"
    source_db.execute("update live set n = 1")
    truth = published_rows(source_db, SHOWN)
    wait_until(lambda: device.rows() == truth, "the change that leaves the large value alone", 20)
    deployment.close()
    assert deployment.problems() == []


class SlowToEvaluate(BulkJobs):
    """Bulk work that evaluates stored rows when it is let go."""

    def __init__(self) -> None:
        super().__init__(LocalEngine())
        self.begun, self.go = threading.Event(), threading.Event()

    def reprocess(self, job: ReprocessJob, progress: Report, stop: threading.Event | None = None) -> BulkOutcome:
        self.begun.set()
        assert self.go.wait(60)
        return super().reprocess(job, progress, stop)


def test_a_deploy_leaves_a_table_that_was_locked_to_the_comparison_it_waits_for(
    deploy: Deploy, source_db: SourceDb
) -> None:
    """The lock is gone in the midst of the deploy. The rows have the values of the source, and stand on devices with
    one of a column that is gone: only who evaluates them finds that."""
    create(source_db)
    source_db.execute("insert into others values ('1')")
    source_db.execute("alter table live add gone text; insert into live values ('1', 0, 'small', 'gone')")
    bulk = SlowToEvaluate()
    deployment = deploy(CONFIG)
    deployment.bulk = bulk
    device = Device(deployment.start())
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # comparisons wait for it to end
        source_db.execute("alter table live drop column gone")
        wait_until(lambda: compared(deployment), "the change to be seen")
        deployment.stop()
    with locked(source_db, "live"):
        deployment.start()
        redeployed = threading.Thread(
            target=deployment.redeploy, args=(f"{CONFIG}  more: {{query: SELECT id FROM others}}\n",), daemon=True
        )
        redeployed.start()
        wait_until(bulk.begun.is_set, "the deploy")
    bulk.go.set()
    redeployed.join(60)
    wait_until(lambda: settled(deployment), "the comparison to end")
    deployment.caught_up()
    assert device.rows()["live", "1"] == {"id": "1", "n": 0, "body": "small"}
    deployment.close()
    assert deployment.problems() == []


def test_of_a_load_that_is_cut_short_rows_that_no_change_concerns_stay_as_they_are(
    deploy: Deploy, source_db: SourceDb
) -> None:
    """The second row fills what may be loaded at once, so that the place that it moves to is not: its change comes
    with the next load."""
    create(source_db)
    source_db.execute("insert into live values ('1', 0, 'small'), ('2', 0, repeat('toast', 2000))")
    bulk = Waiting()
    deployment = deploy(CONFIG)
    deployment.bulk = bulk
    deployment.batch_bytes = 4 * 5_000
    device = Device(deployment.start())
    deployment.stop()
    source_db.lose_slots()
    deployment.start()
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("begin; update live set n = 1 where id = '1'; update live set id = '3' where id = '2'; commit")
    deployment.caught_up()
    assert device.rows()["live", "1"]["n"] == 1
    bulk.go.set()
    truth = published_rows(source_db, SHOWN)
    wait_until(lambda: settled(deployment) and device.rows() == truth, "the comparison to end")
    deployment.close()
    assert deployment.problems() == []
