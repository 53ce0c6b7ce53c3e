"""A type of an extension, from the source to a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.support.fix_headwater import NOTES, wait_until
from tests.support.fix_postgres import skip_without

if TYPE_CHECKING:
    from tests.support.fix_headwater import Deployment
    from tests.support.fix_postgres import SourceDb


VALUES = {
    "1": r'''"a"=>"1", "b \"c"=>NULL, "d\\\\e"=>"tab\there"''',
    "2": "",
    "3": None,
    "4": '"k"=>"' + "x" * 200_000 + '"',
}


@pytest.mark.parametrize("identity", ["default", "full"])
def test_hstore_columns_arrive_as_text(deploy: Callable[..., Deployment], source_db: SourceDb, identity: str) -> None:
    skip_without("hstore", source_db.connection)
    source_db.execute("create extension hstore; create table notes (id text primary key, h hstore, hs hstore[], n int)")
    source_db.execute("alter table notes alter h set storage external")
    source_db.execute(f"alter table notes replica identity {identity}")

    def truth() -> dict[tuple[str, str], dict[str, object]]:
        rows = source_db.fetch("select id, h::text, n from notes")
        return {("notes", key): {"id": key, "h": h, "hs": None, "n": n} for key, h, n in rows}

    for key in ("1", "4"):
        source_db.execute("insert into notes values (%s, %s::hstore)", key, VALUES[key])
    deployment = deploy(NOTES).start()
    assert deployment.rows("a") == truth()
    for key in ("2", "3"):
        source_db.execute("insert into notes values (%s, %s::hstore)", key, VALUES[key])
    source_db.execute("update notes set n = 1")  # the long value is not in the stream
    source_db.execute("update notes set h = h || 'new=>1' where id < '3'; delete from notes where id = '3'")
    assert deployment.rows("a") == truth()
    source_db.execute("create schema apart; alter extension hstore set schema apart; set search_path = public, apart")
    source_db.execute("update notes set h = apart.delete(h, 'a'), hs = array['x=>1'::apart.hstore] where id = '1'")
    shown = deployment.rows("a")["notes", "1"]
    assert shown["h"] == source_db.fetch("select h::text from notes where id = '1'")[0][0]
    assert shown["hs"] == r'["\"x\"=>\"1\""]'
    source_db.execute("alter table notes alter h type text using h::text, drop hs")
    wait_until(lambda: "hs" not in deployment.rows("a")["notes", "1"], "the columns to be others")
    assert deployment.rows("a") == {key: {k: v for k, v in row.items() if k != "hs"} for key, row in truth().items()}
