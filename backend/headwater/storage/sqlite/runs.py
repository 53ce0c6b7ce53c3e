"""Stores runs of ops as segments, and finds segments."""

from __future__ import annotations

import apsw

from headwater.storage.shared.runs import Run

AFTER = """s.bucket = ?1 and s.last_op > ?2
and s.first_op >= coalesce((select max(first_op) from segments where bucket = ?1 and first_op <= ?2), 0)"""
"""The condition for segments `s` of a bucket (?1) that go beyond an op (?2). They are indexed by their first op:
without the second part, each look would walk through all segments of the bucket."""


def insert_run(connection: apsw.Connection, run: Run) -> None:
    """Store a run. The totals of its bucket are the caller's."""
    sql = "insert into segment_blobs (bucket, size, checksum, bodies) values (?, ?, ?, ?) returning id"
    ((blob,),) = connection.execute(sql, (run.bucket, run.size, run.checksum, run.bodies)).fetchall()
    sql = "insert into segments (bucket, first_op, last_op, blob) values (?, ?, ?, ?)"
    connection.execute(sql, (run.bucket, run.first, run.last, blob))
