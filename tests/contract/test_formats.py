"""A store that a newer version has changed is refused by name, by whoever opens it, before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import apsw
import psycopg
import pytest

from headwater.oplog.op import OpId
from headwater.storage.address import SqliteAddress, StoreAddress
from headwater.storage.contract.archive import dump
from headwater.storage.contract.compaction import open_upkeep
from headwater.storage.contract.forget import open_forget
from headwater.storage.contract.history import history_limits, read_flushes
from headwater.storage.contract.seal import seal_store, unseal_store
from headwater.storage.contract.stats import definition_stats, store_stats
from headwater.storage.contract.store import StoreError
from headwater.storage.contract.verify import open_verify
from headwater.storage.open import open_reader, open_store, read_rows
from tests.contract.world import A, World

OPENERS: dict[str, Callable[[StoreAddress], object]] = {
    "to write": open_store,
    "to read": open_reader,
    "for upkeep": open_upkeep,
    "to verify": lambda address: open_verify(address).__enter__(),
    "to forget": open_forget,
    "to export": lambda address: dump(address, Path("never-made")).__enter__(),
    "to seal": lambda address: seal_store(address, "moved"),
    "to unseal": unseal_store,
    "for statistics": store_stats,
    "for a download's size": definition_stats,
    "for its limits": history_limits,
    "for its history": lambda address: list(read_flushes(address, OpId(0), OpId(1 << 40))),
    "for its rows": lambda address: list(read_rows(address, 1, 0, 10)),
}


def note(address: StoreAddress, key: str, value: str) -> None:
    """Write into the store, past everything that is ours."""
    if isinstance(address, SqliteAddress):
        db = apsw.Connection(f"{address.directory}/store.db")
        db.execute("insert or replace into meta values (?, ?)", (key, value))
        db.close()
        return
    with psycopg.connect(address.conninfo, options=f"-c search_path={address.schema}") as pg:
        pg.execute(
            "insert into meta values (%s, %s) on conflict (key) do update set value = excluded.value", [key, value]
        )


@pytest.mark.parametrize("opener", OPENERS)
def test_a_newer_format_is_refused_with_the_version_that_made_it(world: World, opener: str) -> None:
    world.bootstrap({"1": (A, "x")})
    world.store.release(world.lease)
    world.store.close()
    note(world.address, "format", "99")
    note(world.address, "format_by", "9.8.7")
    expected = (
        f"the store has format 99, which headwater 9.8.7 gave it; this is headwater {version('headwater')}, which knows"
        r" formats up to \d+ \(.*\); use headwater 9.8.7 or newer"
    )
    with pytest.raises(StoreError, match=expected):
        OPENERS[opener](world.address)


def test_a_store_knows_the_version_that_gave_it_its_format(world: World) -> None:
    assert world.store.noted("format_by") == version("headwater")
    world.store.close()
    note(world.address, "format_by", "0.0.1")
    store = open_store(world.address)
    assert store.noted("format_by") == "0.0.1", "opening it is not making it"
    store.close()


def test_a_newer_format_is_refused_even_if_nobody_says_who_made_it(world: World) -> None:
    world.store.close()
    note(world.address, "format", "99")
    note(world.address, "format_by", "")
    with pytest.raises(StoreError, match=re.escape("use the version of headwater that made it")):
        open_store(world.address)
