"""`headwater compact` on a store that was written to for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.storage.address import SqliteAddress
from headwater.storage.open import open_store
from tests.support import store_checker
from tests.support.command import headwater, headwater_here
from tests.support.written_store import WrittenStore

A, B = 'todos.1["a"]', 'lists.1["b"]'
CONFIG = """\
replication: {connections: [{uri: "postgresql://app@127.0.0.1:1024/shop", sslmode: disable}]}
storage: {type: sqlite, path: store}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "headwater.yaml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
def written(directory: Path) -> Iterator[WrittenStore]:
    hand = WrittenStore(SqliteAddress(str(directory / "store")))
    hand.publish({"lives": (A, "x"), **{str(n): (B, "x") for n in range(10)}})
    hand.write({f"a{n}": (A, "short-lived") for n in range(500)})
    hand.write({f"a{n}": None for n in range(500)})
    yield hand
    hand.close()


def ops_of(directory: Path) -> dict[str, list[str]]:
    """The kinds of the ops that are kept of each bucket."""
    found = store_checker.histories(directory / "store")
    return {name: [op["op"] for op in ops] for name, ops in found.items()}


@pytest.mark.usefixtures("written")
def test_compact(directory: Path) -> None:
    outcome = headwater("compact", cwd=directory)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.splitlines() == [
        "compacted 2 buckets: 1,013 ops became 13, for 11 rows",
        "put 1 rows (1 KiB) again, which devices download once more",
    ]
    assert ops_of(directory)[A] == ["CLEAR", "PUT"]
    assert store_checker.problems(directory / "store") == []


@pytest.mark.usefixtures("written")
def test_definition_and_budget(directory: Path) -> None:
    before = ops_of(directory)
    outcome = headwater_here("compact", "--definition", "todos", "--budget", "0", cwd=directory)
    assert "put" not in outcome.out
    after = ops_of(directory)
    assert after[B] == before[B]
    assert after[A][:2] == ["CLEAR", "PUT"]
    assert set(after[A][2:502]) == {"MOVE"}


@pytest.mark.usefixtures("written")
def test_unknown_bucket(directory: Path) -> None:
    outcome = headwater_here("compact", "--bucket", "nobody", cwd=directory)
    assert outcome.code == 1
    assert "the store has no bucket nobody" in outcome.err


def test_compact_waits_for_another(directory: Path, written: WrittenStore) -> None:
    other = open_store(written.address).open_compaction()
    other.acquire("elsewhere:1", 3.0)  # held for a moment only
    outcome = headwater_here("compact", cwd=directory)
    assert outcome.code == 0
    assert "compacted 2 buckets" in outcome.out
    other.close()
