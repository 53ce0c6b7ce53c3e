"""How long a device waits after failures."""

from __future__ import annotations

import pytest

from headwater_client.sync.engine import SyncThread


def noted_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list that grows by the seconds of each wait, as it begins."""
    pauses: list[float] = []
    pause = SyncThread._pause

    async def noted(thread: SyncThread, seconds: float) -> None:
        pauses.append(seconds)
        await pause(thread, seconds)

    monkeypatch.setattr(SyncThread, "_pause", noted)
    return pauses
