"""Which source deploys the sync config file, and how a version says whom it waits for."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest

from headwater.replication import versions
from headwater.replication.versions import ConfigFile, waiting_note
from headwater.storage.contract.store import Lease, StoreUnreachableError
from headwater.storage.sql.writer import StoreWriter

STORE = cast("StoreWriter", SimpleNamespace())


def lease(source: str) -> Lease:
    return Lease(source, "me", 1, 10.0)


def test_the_file_is_deployed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    deployed: list[str] = []
    monkeypatch.setattr(versions, "deploy_file", lambda _, lease, *__: deployed.append(lease.name))
    file = ConfigFile("streams: {}")
    threads = [threading.Thread(target=file.deploy, args=(STORE, lease(f"s{number}"))) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(deployed) == 1


def test_another_source_deploys_what_one_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    deployed: list[str] = []

    def deploy(_: object, lease: Lease, *__: object) -> None:
        if lease.name == "a":
            raise StoreUnreachableError("the store's database cannot be reached", "storage")
        deployed.append(lease.name)

    monkeypatch.setattr(versions, "deploy_file", deploy)
    file = ConfigFile("streams: {}")
    with pytest.raises(StoreUnreachableError):
        file.deploy(STORE, lease("a"))
    file.deploy(STORE, lease("b"))
    assert deployed == ["b"]


def test_names_of_those_that_are_waited_for() -> None:
    assert waiting_note(["a"]) == "waits for source a"
    assert waiting_note(["a", "b"]) == "waits for the sources a, b"
    assert waiting_note(list("abcdefgh")) == "waits for the sources a, b, c, d, e and 3 more"
