"""The sockets by which readers of an embedded store hear of commits."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from headwater.storage.sqlite.wake import WakeListener, Waker, wake_directory


@pytest.mark.parametrize("depth", [1, 4], ids=["in the store", "in a temporary directory"])
def test_listeners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    temporary = tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    store = tmp_path.joinpath(*["a-name-of-thirty-letters-or-so"] * depth)
    place = wake_directory(store)
    first, second = WakeListener(store), WakeListener(store)
    waker = Waker(store)
    first.close()
    waker.wake()
    assert select.select([second], [], [], 60)[0] == [second]
    second.close()
    assert not place.exists()
    third = WakeListener(store)
    waker.wake()
    assert select.select([third], [], [], 60)[0] == [third]
    third.close()
    waker.close()
