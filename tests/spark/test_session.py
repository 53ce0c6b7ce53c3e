"""Spark's own process can end at any time, as when the machine runs out of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import psutil
import pytest
from pyspark import SparkContext

from tests.support.fix_headwater import Deployment, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = pytest.mark.spark

CONFIG = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes
"""


def test_a_spark_that_was_killed_is_started_again(
    deploy: Callable[..., Deployment], source_db: SourceDb, capfd: pytest.CaptureFixture[str]
) -> None:
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    deployment = deploy(CONFIG).start()
    first = SparkContext._gateway.proc.pid  # type: ignore[union-attr]  # where Spark itself keeps it
    jvm = psutil.Process(first)
    jvm.kill()
    source_db.execute("alter table notes add column extra int default 7")
    wait_until(lambda: deployment.rows("x") == {("notes", "1"): {"id": "1", "extra": 7}}, "the comparison")
    assert SparkContext._gateway.proc.pid != first  # type: ignore[union-attr]  # as above
    assert capfd.readouterr().err == "", "what a JVM says goes to the log"
