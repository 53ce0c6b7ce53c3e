"""What Spark is started with."""

from __future__ import annotations

import os

import pytest
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

import headwater.pipeline.spark.session
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.session import Spark, SparkError


@pytest.mark.parametrize(("master", "address"), [("local[2]", "127.0.0.1"), ("spark://master:7077", None)])
def test_only_a_spark_on_this_machine_keeps_to_it(
    monkeypatch: pytest.MonkeyPatch, master: str, address: str | None
) -> None:
    """Executors on other machines connect to the driver."""
    seen: list[str | None] = []

    def launched(conf: SparkConf) -> JavaGateway:
        seen.append(os.environ.get("SPARK_LOCAL_IP"))
        raise PySparkException("not in this test")

    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(headwater.pipeline.spark.session, "launch_jvm", launched)
    with pytest.raises(SparkError):
        Spark(SparkSettings(master)).context()
    monkeypatch.delenv("SPARK_LOCAL_IP", raising=False)
    assert seen == [address]
