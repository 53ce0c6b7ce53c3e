"""Rows that nothing but their content identifies, of which copies come and go while their table is compared.

The comparison counts copies on both sides. What is streamed after its snapshot is in the store that it reads, and may
make up there for a copy that is missing or left over.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.bulk.contract import CompareJob, CompareOutcome, Difference, Report
from headwater.pipeline.jobs import BulkJobs
from tests.support.changed_source import settled, unheard
from tests.support.fix_headwater import Deploy, Deployment, wait_until
from tests.support.local_bulk import LocalEngine

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

CONFIG = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT row_id() AS id, body FROM notes
"""


class HeldUp(BulkJobs):
    """Bulk work whose comparisons do something before, and after, they look at both sides."""

    def __init__(self) -> None:
        super().__init__(LocalEngine())
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def compare(
        self,
        job: CompareJob,
        progress: Report,
        found: Callable[[Sequence[Difference]], None],
        stop: threading.Event | None = None,
    ) -> CompareOutcome:
        before, after = self.before, self.after
        self.before = self.after = lambda: None
        before()
        outcome = super().compare(job, progress, found, stop)
        after()
        return outcome


@dataclass(frozen=True)
class Case:
    """`unseen` is missed by the stream; `meanwhile` comes after the comparison's snapshot, and before it reads the
    store; `later` once it did."""

    unseen: str
    meanwhile: str
    later: str = ""
    identity: str = "full"


COPY = "insert into notes values ('x')"
GONE = "delete from notes where ctid = (select min(ctid) from notes where body = 'b')"

CASES = {
    "missed and made again": Case(COPY, COPY),
    "missed and made again, without identity": Case(COPY, COPY, identity="nothing"),
    "deleted once unseen and once more": Case(GONE, GONE),
    "missed, and another becomes the same": Case(COPY, "update notes set body = 'x' where body = 'a'"),
    "deleted unseen, and another becomes different": Case(GONE, "update notes set body = 'y' where body = 'b'"),
    "made again and gone": Case(
        COPY, COPY, "delete from notes where ctid = (select min(ctid) from notes where body = 'x')"
    ),
    "missed, and again after it was compared": Case(COPY, COPY, COPY),
    "emptied and made again": Case("delete from notes where body = 'b'", f"truncate notes; {COPY}"),
    "emptied after it was compared": Case(COPY, COPY, f"truncate notes; {COPY}"),
}


OFTEN = {
    "missed and made again",
    "missed and made again, without identity",
    "deleted unseen, and another becomes different",
    "emptied and made again",
}


@pytest.mark.parametrize(
    "name", [name if name in OFTEN else pytest.param(name, marks=pytest.mark.long) for name in CASES]
)
def test_copies_that_come_and_go_while_they_are_compared_are_counted(
    deploy: Deploy, source_db: SourceDb, name: str
) -> None:
    case = CASES[name]
    source_db.execute("create table notes (body text); create publication headwater for table notes")
    source_db.execute(f"alter table notes replica identity {case.identity}")
    source_db.execute("insert into notes values ('a'), ('b'), ('b'), ('b')")
    deployment, bulk = deploy(CONFIG), HeldUp()
    deployment.bulk = bulk
    deployment.start()
    deployment.stop()
    source_db.execute(case.unseen)
    source_db.lose_slots()

    def stream(statements: str) -> Callable[[], None]:
        def run() -> None:
            with psycopg.connect(source_db.dsn, autocommit=True) as conn:
                for statement in filter(None, statements.split("; ")):
                    conn.execute(statement.encode())
                deployment.caught_up(conn)

        return run

    bulk.before, bulk.after = stream(case.meanwhile), stream(case.later)
    deployment.start()
    wait_until(lambda: settled(deployment), "the comparison to end")
    deployment.caught_up()
    assert shown(deployment) == Counter(row[0] for row in source_db.fetch("select body from notes"))
    deployment.close()
    assert deployment.problems() == []


def shown(deployment: Deployment) -> Counter[object]:
    return Counter(row["body"] for row in deployment.rows("a").values())


@pytest.mark.parametrize(
    ("form", "unseen", "meanwhile", "differences"),
    [
        ("replica identity full", f"{COPY}; {COPY}", COPY, 2),
        ("replica identity nothing", f"{COPY}; {COPY}", COPY, 2),
        ("add n int primary key default 1", "update notes set body = repeat('x', 9000)", "update notes set n = 2", 1),
    ],
)
def test_an_audit_names_once_what_it_looks_at_twice(
    deploy: Deploy, source_db: SourceDb, form: str, unseen: str, meanwhile: str, differences: int
) -> None:
    """What was touched since its snapshot is counted once more at the end: copies, and with a key the row whose large
    value another took along."""
    source_db.execute("create table notes (body text); alter table notes alter body set storage external")
    source_db.execute(f"alter table notes {form}; create publication headwater for table notes")
    source_db.execute("insert into notes values ('a')")
    deployment, bulk = deploy(CONFIG), HeldUp()
    deployment.bulk = bulk
    deployment.start()
    with unheard(deployment):
        source_db.execute(unseen)

    def change() -> None:
        with psycopg.connect(source_db.dsn, autocommit=True) as conn:
            conn.execute(meanwhile.encode())
            deployment.caught_up(conn)

    bulk.before = change
    found = deployment.ask("audit")
    assert found["differences"] == {"public.notes": differences}
    assert len(found["rows"]) == differences
    deployment.close()
    assert deployment.problems() == []
