"""What Spark has on record of its jobs."""

from __future__ import annotations

from typing import NamedTuple

from pyspark import SparkContext


class SparkJob(NamedTuple):
    """A job, and how many of its tasks ended in either way."""

    id: int
    completed: int
    failed: int


def spark_jobs(context: SparkContext) -> dict[int, SparkJob]:
    """The last jobs, by id."""
    jobs = context._jsc.sc().statusStore().jobsList(None)
    found = (jobs.apply(number) for number in range(jobs.size()))
    return {job.jobId(): SparkJob(job.jobId(), job.numCompletedTasks(), job.numFailedTasks()) for job in found}
