"""What a replicator has done is counted once, however its bulk work tells of itself."""

from __future__ import annotations

from headwater.bulk.contract import BulkProgress, JobKind
from headwater.replication.meters import Figures, Totals


def told(figures: Figures, what: str, *steps: tuple[int, int]) -> None:
    for rows, tasks in steps:
        figures.worked(BulkProgress(rows, 100, tasks, 4, what))
    rows, tasks = steps[-1]
    figures.worked(BulkProgress(rows, 100, tasks, 4, what, over=True))


def test_rows_of_bulk_work() -> None:
    figures = Figures()
    figures.worked(BulkProgress(0, 100, 0, 4))
    figures.worked(BulkProgress(30, 100, 1, 4))
    assert figures.totals() == Totals(rows=30, chunks=1)
    told(figures, JobKind.SNAPSHOT, (30, 1), (100, 4))
    assert figures.totals() == Totals(rows=100, chunks=4)


def test_job_after_another() -> None:
    figures = Figures()
    told(figures, JobKind.SNAPSHOT, (0, 0), (100, 4))
    told(figures, JobKind.SNAPSHOT, (100, 4))  # as large, and not seen at its beginning
    told(figures, JobKind.MERGE, (5, 0), (20, 0))
    assert figures.totals() == Totals(rows=220, chunks=8)


def test_compared_rows_are_not_counted() -> None:
    figures = Figures()
    told(figures, JobKind.COMPARISON, (0, 0), (1000, 4))
    told(figures, JobKind.MERGE, (3, 0))
    told(figures, JobKind.AUDIT, (500, 1))
    told(figures, JobKind.MERGE, (4, 0))
    assert figures.totals() == Totals(rows=7)


def test_stream_and_bulk_work() -> None:
    figures = Figures()
    told(figures, JobKind.SNAPSHOT, (10, 1))
    figures.received(200)
    figures.received(50)
    figures.stored(2, 7, 0)
    assert figures.totals() == Totals(rows=17, transactions=2, bytes=250, chunks=3)
