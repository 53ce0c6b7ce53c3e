"""Spark's own process can end at any time, as when the machine runs out of memory."""

from __future__ import annotations

import logging
import re
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


def test_a_spark_that_was_killed_is_started_again_and_that_is_told(
    deploy: Callable[..., Deployment],
    source_db: SourceDb,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headwater.pipeline.session")
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    deployment = deploy(CONFIG).start()
    first = SparkContext._gateway.proc.pid  # type: ignore[union-attr]  # where Spark itself keeps it
    jvm = psutil.Process(first)
    jvm.kill()
    source_db.execute("alter table notes add column extra int default 7")
    wait_until(lambda: (health := deployment.health()) is not None and health.work == "starting Spark", "the start")
    wait_until(lambda: deployment.rows("x") == {("notes", "1"): {"id": "1", "extra": 7}}, "the comparison")
    assert SparkContext._gateway.proc.pid != first  # type: ignore[union-attr]  # as above
    assert capfd.readouterr().err == "", "what a JVM says goes to the log"
    ended, starting, ready = [
        record.getMessage() for record in caplog.records if record.name == "headwater.pipeline.session"
    ][-3:]
    assert ended.startswith("Spark's JVM has ended")
    assert starting.startswith("starting Spark (local[*]), which takes 5 to 15 seconds")
    assert re.fullmatch(r"Spark is ready after \d+\.\d s", ready)
