"""How often a replicator looks at what no event tells of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """All in seconds."""

    catalog: float = 5.0
    """Between looks at the source's catalog when nothing hints at a change."""

    again: float = 1.0
    """From a look on a hint to one more: a commit that waits for a synchronous standby is in the stream before others
    can see it."""

    rest: float = 0.2
    """Between two looks at least, for hints can come in any number: anybody who may log in to the source can write
    one."""

    health: float = 10.0
    """Between looks at how the source stands."""

    audit: float = 900.0
    """Between comparisons of tables of which not all changes are published."""

    work: float = 0.5
    """Between looks for bulk work that somebody asked for."""

    retry: float = 5.0
    """From a failure of bulk work to the next attempt."""
