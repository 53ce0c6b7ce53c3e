"""A store that a newer version has changed is refused by name, by whoever opens it, before anything is touched."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

import psycopg
import pytest

from headwater.oplog.op import OpId
from headwater.storage import postgres, sqlite
from headwater.storage.address import SqliteAddress, StoreAddress
from headwater.storage.contract.store import StoreError
from headwater.storage.open import open_store
from headwater.storage.shared.formats import FORMAT_KEY, GIVEN_BY_KEY
from headwater.storage.store import Store
from tests.contract.source_writer import A, SourceWriter
from tests.support.fix_stores import LASTING
from tests.support.store_file import store_file

pytestmark = LASTING

OPENERS: dict[str, Callable[[Store], object]] = {
    "to write": lambda store: store.open_writer(),
    "to read": lambda store: store.open_reader(),
    "to compact": lambda store: store.open_compaction(),
    "to verify": lambda store: store.open_verify().__enter__(),
    "to forget": lambda store: store.open_forget(),
    "to export": lambda store: store.dump().__enter__(),
    "to seal": lambda store: store.seal("moved"),
    "to unseal": lambda store: store.unseal(),
    "for statistics": lambda store: store.store_stats(),
    "for a download's size": lambda store: store.definition_stats(),
    "for its history": lambda store: list(store.read_flushes(OpId(0), OpId(1 << 40))),
    "for its rows": lambda store: list(store.read_rows(1, 0, 10)),
}


def write(address: StoreAddress, *statements: str) -> None:
    """Write into the store, past everything that is ours."""
    if isinstance(address, SqliteAddress):
        with store_file(address.directory) as db:
            for statement in statements:
                db.execute(statement)
        return
    with psycopg.connect(address.conninfo, options=f"-c search_path={address.schema}") as pg:
        for statement in statements:
            pg.execute(statement.encode())


def note(address: StoreAddress, key: str, value: str) -> None:
    write(address, f"delete from meta where key = '{key}'", f"insert into meta values ('{key}', '{value}')")


@pytest.mark.parametrize("opener", OPENERS)
def test_newer_format(writer: SourceWriter, opener: str) -> None:
    writer.bootstrap({"1": (A, "x")})
    writer.store.release(writer.lease)
    writer.store.close()
    note(writer.address, FORMAT_KEY, "99")
    note(writer.address, GIVEN_BY_KEY, "9.8.7")
    own = re.escape(version("headwater"))
    expected = (
        f"the store has format 99, set by headwater 9.8.7; this is headwater {own}, which knows"
        r" formats up to \d+ \(.*\); use headwater 9.8.7 or newer"
    )
    with pytest.raises(StoreError, match=expected):
        OPENERS[opener](open_store(writer.address))


def test_format_by(writer: SourceWriter) -> None:
    assert writer.store.get_meta(GIVEN_BY_KEY) == version("headwater")
    writer.store.close()
    note(writer.address, GIVEN_BY_KEY, "0.0.1")
    store = open_store(writer.address).open_writer()
    assert store.get_meta(GIVEN_BY_KEY) == "0.0.1", "opening it is not making it"
    store.close()


def test_newer_format_of_unknown_version(writer: SourceWriter) -> None:
    writer.store.close()
    note(writer.address, FORMAT_KEY, "99")
    note(writer.address, GIVEN_BY_KEY, "")
    with pytest.raises(StoreError, match=re.escape("use the version of headwater that made it")):
        open_store(writer.address).open_writer()


@pytest.mark.parametrize("number", ["1", "2", "6"])
def test_development_format_is_refused(writer: SourceWriter, monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    writer.store.close()
    note(writer.address, "format", number)  # where these versions noted it
    write(writer.address, f"delete from meta where key = '{FORMAT_KEY}'")
    back_end = sqlite if isinstance(writer.address, SqliteAddress) else postgres
    for known in (back_end.connection.FORMAT, 6, 9):
        monkeypatch.setattr(back_end.connection, "FORMAT", known)
        expected = "written by a development version before 0.1.0.*start with an empty store"
        with pytest.raises(StoreError, match=expected):
            open_store(writer.address).open_writer()


def test_older_format_is_migrated(writer: SourceWriter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    writer.bootstrap({"1": (A, "x")})
    writer.store.release(writer.lease)
    writer.store.close()
    note(writer.address, GIVEN_BY_KEY, "0.0.1")
    back_end = sqlite if isinstance(writer.address, SqliteAddress) else postgres
    now = back_end.connection.FORMAT
    (tmp_path / f"{now + 1:03d}.sql").write_text(
        "alter table versions add column mood text; create table news (id int)"
    )
    for module in (back_end.connection, back_end.migrate, back_end.store):
        monkeypatch.setattr(module, "FORMAT", now + 1)
    monkeypatch.setattr(back_end.migrate, "_SCRIPTS", tmp_path)
    backend = open_store(writer.address)
    assert backend.older_format() == now
    with closing(backend.open_writer()) as store:
        assert store.get_meta(GIVEN_BY_KEY) == version("headwater")
        assert len(store.versions()) == 1
    write(writer.address, "update versions set mood = 'glad'", "insert into news values (1)")
    assert backend.older_format() is None
