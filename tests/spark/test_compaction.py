"""Histories that are too much for one process are compacted by Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from headwater.cli.compact import SparkCompaction
from headwater.compaction.compactor import CompactionPass, Summary, shared
from headwater.oplog.op import OpId
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from headwater.storage.open import open_store
from headwater.storage.shared.compaction import CompactionPolicy
from tests.support.fix_headwater import Deployment
from tests.support.sync_configs import OWN_ITEMS

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "on_postgres", [False, pytest.param(True, marks=pytest.mark.long)], ids=["embedded", "postgres"]
)
def test_buckets_are_compacted_by_tasks_and_devices_converge(
    deploy: Callable[..., Deployment], source_db: SourceDb, spark: Spark, on_postgres: bool
) -> None:
    source_db.execute("create table items (id int primary key, owner text, body text)")
    source_db.execute("insert into items select i, 'u' || i % 3, 'x' from generate_series(1, 600) i")
    deployment = deploy(OWN_ITEMS, on_postgres=on_postgres).start()
    for number in range(4):
        source_db.execute("update items set body = %s", f"version {number}")
        deployment.caught_up()
    device = deployment.buckets("u1")
    before = deployment.op_count()
    compaction = open_store(deployment.address).open_compaction()
    try:
        with CompactionPass(compaction, "test:1", lambda _: False) as work:
            shares = shared(
                work,
                deployment.address,
                compaction.buckets(OpId(0)),
                compaction.checkpoint(),
                CompactionPolicy(),
                finish=True,
            )
            total = Summary()
            for summary in SparkCompaction(SparkEngine(spark))(shares):
                total.add(summary)
    finally:
        compaction.close()
    assert (total.buckets, total.live) == (3, 600)
    assert total.after <= 1.2 * total.live + 3
    assert deployment.op_count() < before / 2
    assert {name: model.rows for name, model in deployment.buckets("u1").items()} == {
        name: model.rows for name, model in device.items()
    }
    assert deployment.problems() == []
