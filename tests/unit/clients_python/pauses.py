"""How long a device waits after failures."""

from __future__ import annotations

import pytest

from headwater_client.sync.engine import Engine


def noted_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list that grows by the seconds of each wait, as it begins."""
    pauses: list[float] = []
    pause = Engine._pause

    async def noted(engine: Engine, seconds: float) -> None:
        pauses.append(seconds)
        await pause(engine, seconds)

    monkeypatch.setattr(Engine, "_pause", noted)
    return pauses
