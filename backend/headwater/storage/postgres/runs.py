"""Stores runs of ops as segments."""

from __future__ import annotations

from headwater.storage.shared.runs import Run

INSERT_RUN = (
    "with kept as (insert into segment_blobs (bucket, size, checksum, bodies) values (%s, %s, %s, %b) returning id)"
    " insert into segments (bucket, first_op, last_op, blob) select %s, %s, %s, id from kept"
)
"""Stores a run, given its `run_values`. The totals of its bucket are the caller's."""


def run_values(run: Run) -> tuple[object, ...]:
    """The parameters of INSERT_RUN."""
    return run.bucket, run.size, run.checksum, run.bodies, run.bucket, run.first, run.last
