"""Progress of tasks that run here, and of those that run on other machines."""

from __future__ import annotations

from pathlib import Path

from headwater.bulk.contract import BulkProgress, JobKind
from headwater.pipeline.progress import ProgressReporter, TaskProgress


def test_task_elsewhere_leaves_nothing(tmp_path: Path) -> None:
    there = tmp_path / "of the driver"
    with TaskProgress(str(there), 0, "0") as progress:
        progress.add(100)
    assert list(tmp_path.iterdir()) == []


def test_progress_of_tasks_elsewhere(tmp_path: Path) -> None:
    told: list[BulkProgress] = []
    finished = [2, 5, 8]  # the job that the engine was given had tasks before these
    with ProgressReporter(JobKind.SNAPSHOT, str(tmp_path / "stage"), 1000, 4, told.append, lambda: finished[0]):
        finished.pop(0)
    assert (told[0].rows, told[0].tasks) == (0, 0)
    assert (told[-1].rows, told[-1].tasks, told[-1].over) == (750, 3, True)


def test_progress_of_tasks_here(tmp_path: Path) -> None:
    told: list[BulkProgress] = []
    reporter = ProgressReporter(JobKind.SNAPSHOT, str(tmp_path), 1000, 4, told.append)
    with reporter, TaskProgress(str(tmp_path), 0, "0") as progress:
        progress.add(100)
    assert (told[-1].rows, told[-1].tasks) == (100, 1)
