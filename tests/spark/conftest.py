"""All bulk work of these tests is Spark's."""

from __future__ import annotations

import pytest

from headwater.pipeline.jobs import BulkJobs


@pytest.fixture
def bulk(spark_bulk: BulkJobs) -> BulkJobs:
    """Takes the place of the one that does without."""
    return spark_bulk
