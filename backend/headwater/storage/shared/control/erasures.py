"""Texts that a store can work without, and the statements that erase them in every database."""

from __future__ import annotations

from typing import NamedTuple


class Erasure(NamedTuple):
    """How texts of a column are erased: `statement`, for rows that satisfy `condition`."""

    condition: str
    statement: str


ERASURES: dict[tuple[str, str], Erasure] = {
    # Null means "anything": readers then check everything once
    ("flushes", "buckets"): Erasure("true", "update flushes set buckets = null"),
    ("flushes", "lookups"): Erasure("true", "update flushes set lookups = null"),
    **{
        ("requests", column): Erasure("state in ('done', 'failed')", "delete from requests")
        for column in ("payload", "progress", "result")
    },
    ("revocations", "value"): Erasure("true", "delete from revocations"),
    ("versions", "note"): Erasure("true", "update versions set note = ''"),
    ("versions", "yaml"): Erasure("state in ('stopped', 'failed')", "delete from versions"),
    ("write_checkpoints", "key"): Erasure("true", "delete from write_checkpoints"),
}
"""Erasable texts, by table and column. All other texts are needed."""
