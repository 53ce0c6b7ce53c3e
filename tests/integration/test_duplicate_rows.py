"""Rows that only their content identifies are counted while their table is compared and goes on changing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
import pytest

from headwater.bulk.contract import CompareJob, CompareOutcome, Difference, Report, Stop
from headwater.pipeline.engine import Found
from headwater.pipeline.jobs import BulkJobs
from headwater.replication.jobs.merge import Merge
from headwater.replication.stream import step_size
from headwater.storage.sqlite.flush import SqliteFlush
from tests.support.changed_source import settled, unheard
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.local_bulk import LocalEngine
from tests.support.sync_configs import ITEMS, auto_streams
from tests.support.waiting import wait_until

CONFIG = auto_streams(notes="SELECT row_id() AS id, body FROM notes")


class HeldUp(BulkJobs):
    """Bulk work whose comparisons do something before, and after, they look at both sides."""

    def __init__(self) -> None:
        super().__init__(LocalEngine())
        self.before: Callable[[], None] = lambda: None
        self.after: Callable[[], None] = lambda: None

    def compare(self, job: CompareJob, progress: Report, found: Found, stop: Stop = None) -> CompareOutcome:
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
def test_duplicates_change_during_compare(deploy: Deploy, source_db: SourceDb, name: str) -> None:
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


def shown(deployment: Deployment) -> Counter[object]:
    return Counter(row["body"] for row in deployment.rows("a").values())


ALTERED = {
    "renamed": "alter table notes rename n to m",
    "renamed and a column added": "alter table notes rename n to m; alter table notes add k text default 'k'",
    "a column added": "alter table notes add k text",
    "a column dropped": "alter table notes drop n",
    "another type": "alter table notes alter n type text using n::text",
}


@pytest.mark.parametrize("identity", ["full", "nothing"])
@pytest.mark.parametrize("name", ALTERED)
def test_rows_gone_since_columns_changed(deploy: Deploy, source_db: SourceDb, name: str, identity: str) -> None:
    """Rows of the former columns that the source has no more, of which the service saw no deletion or could not apply
    it, as while rows get other ids."""
    source_db.execute("create table notes (body text, n int)")
    published = "insert, truncate" if identity == "nothing" else "insert, update, delete, truncate"
    source_db.execute(f"create publication headwater for table notes with (publish = '{published}')")
    source_db.execute(f"alter table notes replica identity {identity}")
    source_db.execute("insert into notes values ('a', 1), ('b', 2), ('b', 2), ('c', 3), ('d', 4), ('d', 4)")
    deployment = deploy(auto_streams(notes="SELECT notes.*, row_id() AS id FROM notes")).start()
    deployment.rows("a")
    deployment.stop()
    source_db.execute(ALTERED[name])
    source_db.execute("delete from notes where body = 'a'; delete from notes where ctid = '(0,2)'")
    source_db.execute("insert into notes (body) values ('last')")
    deployment.start()
    wait_until(lambda: settled(deployment) and shown(deployment)["last"] == 1, "the comparison to end")
    truth = [json.loads(row) for (row,) in source_db.fetch("select row_to_json(t)::text from notes t")]
    assert Counter(map(_values, deployment.rows("a").values())) == Counter(map(_values, truth))


def _values(row: Mapping[str, object]) -> str:
    return str(sorted((name, str(value)) for name, value in row.items() if name != "id" and value is not None))


@pytest.mark.parametrize(
    ("form", "unseen", "meanwhile", "differences"),
    [
        ("replica identity full", f"{COPY}; {COPY}", COPY, 2),
        ("replica identity nothing", f"{COPY}; {COPY}", COPY, 2),
        ("add n int primary key default 1", "update notes set body = repeat('x', 9000)", "update notes set n = 2", 1),
    ],
)
def test_audit_counts_touched_rows_once(
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


def test_duplicates_inserted_during_compare(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_db.execute("create table items (n int, body text, gone text)")
    source_db.execute("alter table items replica identity nothing")
    source_db.execute("insert into items select i, 'body ' || i, 'gone' from generate_series(1, 3000) i")
    deployment = deploy(ITEMS).start()
    looks: list[int] = []

    def position() -> int:
        deployment.caught_up()
        return max(bucket.position for bucket in deployment.buckets("a").values())

    before = position()
    look = SqliteFlush.rows_with_lines

    def noted(flush: SqliteFlush, table: int, lines: Sequence[str]) -> dict[str, list[str]]:
        found = look(flush, table, lines)
        looks.append(len(lines))
        if len(looks) == 1:
            source_db.execute("insert into items select n, body from items")
        return found

    next_batch = Merge.next_batch

    def after_the_rows(self: Merge, differences: Sequence[Difference], oids: frozenset[int]) -> int:
        if not looks or any(self._log.of(oid).delta for oid in oids):  # the rows have come meanwhile
            return next_batch(self, differences, oids)
        return 0

    monkeypatch.setattr(SqliteFlush, "rows_with_lines", noted)
    monkeypatch.setattr(Merge, "next_batch", after_the_rows)
    monkeypatch.setattr(step_size, "MOST", 100)  # rows of a batch
    source_db.execute("alter table items drop column gone")
    wait_until(lambda: settled(deployment), "the comparison to end")
    wait_until(lambda: len(deployment.rows("a")) >= 6000, "the rows that came meanwhile", seconds=30)
    shown = Counter((row["n"], row["body"]) for row in deployment.rows("a").values())
    assert shown == Counter(source_db.fetch("select n, body from items"))
    assert len(looks) <= 10  # each reads the whole table
    # Each row came once, and was written once more for its column: none was put there for another, and removed again
    assert position() - before < 7000
