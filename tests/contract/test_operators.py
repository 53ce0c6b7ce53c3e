"""What every store promises of what operators did and keep: who deployed a version, changes, cases, and that of two who
deploy at once one learns of the other."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest

from headwater.storage.contract import store as contract
from headwater.storage.contract.store import SealedStoreError
from headwater.storage.contract.versions import (
    ConfigVersion,
    NewerVersionError,
    NotProcessingError,
    Origin,
    VersionState,
)
from headwater.storage.open import open_store
from headwater.storage.sql import control
from tests.contract.source_writer import YAML, A, SourceWriter


def test_author_and_message(writer: SourceWriter) -> None:
    assert [(each.author, each.message) for each in (writer.store.deploy("one", Origin.FILE),)] == [("", "")]
    deployed = writer.store.deploy("two", Origin.COMMAND, author="Ada", message="for the new list")
    assert (deployed.author, deployed.message) == ("Ada", "for the new list")
    assert writer.store.versions()[-1] == deployed


def test_expected_version(writer: SourceWriter) -> None:
    first = writer.store.deploy("one", Origin.COMMAND, expected=0)
    second = writer.store.deploy("two", Origin.COMMAND, expected=first.id)
    with pytest.raises(NewerVersionError, match=f"version {second.id} was deployed meanwhile"):
        writer.store.deploy("three", Origin.COMMAND, expected=first.id)
    assert writer.store.deploy("two", Origin.COMMAND, expected=first.id) == second, "it is there already"
    assert [version.yaml for version in writer.store.versions()] == ["one", "two"]


def test_two_deploy_upon_the_same_version(writer: SourceWriter) -> None:
    upon = writer.store.deploy("one", Origin.COMMAND).id
    gate, outcomes = threading.Barrier(4), list[ConfigVersion | None]()

    def deploy(name: str) -> None:
        with closing(open_store(writer.address).open_writer()) as store:
            gate.wait(60)
            try:
                outcomes.append(store.deploy(name, Origin.COMMAND, expected=upon))
            except NewerVersionError:
                outcomes.append(None)

    threads = [threading.Thread(target=deploy, args=(f"tab {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(outcomes), outcomes.count(None)) == (4, 3)
    assert len(writer.store.versions()) == 2


def test_cancelled_version(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    coming = writer.store.deploy("two", Origin.COMMAND)
    seen = writer.store.change_counter()
    cancelled = writer.store.cancel(coming.id, "cancelled by Ada")
    assert (cancelled.state, cancelled.note) == (VersionState.FAILED, "cancelled by Ada")
    assert writer.store.change_counter() > seen, "the replicator hears of it"
    assert writer.store.activate(writer.lease, coming.id, {writer.lease.name: {}}) is None
    assert [version.state for version in writer.store.versions()] == [VersionState.ACTIVE, VersionState.FAILED]
    for number in (coming.id, writer.store.versions()[0].id, 99):
        with pytest.raises(NotProcessingError):
            writer.store.cancel(number, "again")
    again = writer.store.deploy("two", Origin.COMMAND)
    assert again.id > coming.id, "it can be deployed again"
    assert writer.store.deploy(YAML, Origin.COMMAND).state is VersionState.PROCESSING


def test_changes(writer: SourceWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CHANGES_KEPT", 5)
    for number in range(8):
        writer.store.note_change("Ada", "edit", "deploy", f'{{"version":{number}}}')
    found = writer.store.changes(None, 10)
    assert [change.detail for change in found] == [f'{{"version":{number}}}' for number in (7, 6, 5, 4, 3)]
    assert (found[0].who, found[0].role, found[0].what) == ("Ada", "edit", "deploy")
    assert found[-1].at <= found[0].at
    assert [change.id for change in writer.store.changes(found[1].id, 2)] == [found[2].id, found[3].id]
    assert contract.CHANGES_KEPT >= 1000


def test_cases(writer: SourceWriter) -> None:
    writer.store.put_case("b", "{}", "Ada")
    writer.store.put_case("a", "{}", "")
    writer.store.put_case("b", '{"user":"u1"}', "Ben")
    assert [(case.name, case.content, case.author) for case in writer.store.cases()] == [
        ("a", "{}", ""),
        ("b", '{"user":"u1"}', "Ben"),
    ]
    assert [writer.store.delete_case("a") for _ in range(2)] == [True, False]
    assert [case.name for case in writer.store.cases()] == ["b"]


def test_sealed_store_takes_none(writer: SourceWriter) -> None:
    writer.store.release(writer.lease)
    open_store(writer.address).seal("moved")
    for change in (
        lambda: writer.store.put_case("a", "{}", ""),
        lambda: writer.store.note_change("Ada", "edit", "deploy", "{}"),
        lambda: writer.store.deploy("two", Origin.COMMAND),
    ):
        with pytest.raises(SealedStoreError):
            change()
