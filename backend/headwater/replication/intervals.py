"""How often a replicator stores what arrives, and polls what it is not notified of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """All in seconds."""

    catalog: float = 5.0
    """Between reads of the source's catalog when nothing hints at a change."""

    recheck: float = 1.0
    """From a read after a hint to one more: the stream brings a commit that waits for a synchronous standby before
    other sessions see it."""

    min_interval: float = 0.2
    """Between two reads at least. Everybody who can log in to the source can write any number of hints."""

    commit_delay: float = 0.004
    """From a flush of several transactions to the next. Their writers go on at once, and one flush for what they all
    commit meanwhile leaves them more of the machine than one for each."""

    health: float = 10.0
    """Between health checks of the source."""

    audit: float = 900.0
    """Between comparisons of tables that are only partly published."""

    work: float = 0.5
    """Between looks for bulk work to do."""

    retry: float = 5.0
    """From a failure of bulk work to the next attempt."""
