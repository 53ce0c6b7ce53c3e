"""What a job sends to its tasks."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwater.bulk.contract import VerifyJob, VerifyTable
from headwater.decode.types import TypeCatalog
from headwater.oplog.keys import StoreKeys
from headwater.pipeline.engine import Job
from headwater.pipeline.jobs import BulkJobs
from headwater.storage.address import SqliteAddress
from tests.support.local_bulk import LocalEngine, LocalRun


class Weighing(LocalEngine):
    """Notes the size of what is sent with each task."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    @contextmanager
    def run(self, job: Job, what: str, stop: threading.Event | None = None) -> Iterator[LocalRun[Job]]:
        self.sizes.append(len(pickle.dumps(job)))
        with super().run(job, what, stop) as run:
            yield run


def test_size_of_a_task(tmp_path: Path) -> None:
    engine = Weighing()
    for count in (1, 500):
        tables = tuple(VerifyTable(number, None, ()) for number in range(count))
        address = SqliteAddress(str(tmp_path))
        job = VerifyJob(
            source_name="default", tables=tables, plans=(), types=TypeCatalog.from_rows([]), keys=StoreKeys(b""),
            store=address, directory=str(tmp_path),
        )  # fmt: skip
        BulkJobs(engine).rows_in_buckets(job, [1], lambda _: None)
    assert engine.sizes[0] == engine.sizes[1]
