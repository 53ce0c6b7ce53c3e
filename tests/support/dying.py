"""The failpoints of flushes, and a replicator that dies there."""

from __future__ import annotations

import pytest

from headwater.storage.sqlite import flush
from tests.support.fix_headwater import Deployment
from tests.support.waiting import wait_until

FLUSH_POINTS = ("flush.before_totals", "flush.before_commit", "flush.after_commit")
REFRESH_POINTS = ("refresh.marked", "refresh.before_merge", "refresh.after_merge")
"""Of computed tables."""


def die_at(point: str, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a stopped deployment on the embedded store, whose replicator dies at this point, and stop what is left of
    it."""

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt(name)

    with monkeypatch.context() as patch:
        patch.setattr(flush, "failpoint", die)
        deployment.start(wait=False)
        wait_until(lambda: _is_dead(deployment), "the replicator to die")
    deployment.stop()
    assert deployment.problems() == []


def _is_dead(deployment: Deployment) -> bool:
    try:
        deployment.raise_failure()
    except KeyboardInterrupt:
        return True
    return False
