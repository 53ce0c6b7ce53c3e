"""Texts that a store can do without, as statements that every database understands."""

from __future__ import annotations

from typing import NamedTuple


class Erasure(NamedTuple):
    """How texts of a column are erased: those that `condition` holds for, by `statement`."""

    condition: str
    statement: str


ERASURES: dict[tuple[str, str], Erasure] = {
    # Null means "anything": readers then look at everything once
    ("flushes", "buckets"): Erasure("true", "update flushes set buckets = null"),
    ("flushes", "lookups"): Erasure("true", "update flushes set lookups = null"),
    **{
        ("requests", column): Erasure("state in ('done', 'failed')", "delete from requests")
        for column in ("payload", "progress", "result")
    },
    ("versions", "note"): Erasure("true", "update versions set note = ''"),
    ("versions", "yaml"): Erasure("state in ('stopped', 'failed')", "delete from versions"),
    ("write_checkpoints", "key"): Erasure("true", "delete from write_checkpoints"),
}
"""By table and column, what `storage.contract.forget` lets go."""
