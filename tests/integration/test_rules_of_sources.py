"""What authors of rules are told about rows of several databases, of which one may be away."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater.api.admin.route import AdminSettings
from headwater.source.connect import SourceSettings
from tests.support.command import Outcome, Run
from tests.support.fix_admin import NOWHERE, OPERATOR, AdminEndpoint, running_admin
from tests.support.fix_sources import NewSources, Sources

SERVED = """\
config: {edition: 3}
streams:
  orders:
    auto_subscribe: true
    query: >-
      SELECT orders.* FROM shops.public.orders
      WHERE item IN (SELECT id FROM catalogue.public.items WHERE market = auth.parameter('market'))
  items: {auto_subscribe: true, query: SELECT * FROM catalogue.public.items WHERE market = auth.parameter('market')}
"""
NEW = SERVED.replace("SELECT orders.*", "SELECT o.row_id() AS id, o.item, o.note").replace("orders\n", "orders AS o\n")
ORDERS = "create table orders (id text primary key, item text, note text);"
ITEMS = """
create type size as (label text, width int);
create table items (id text primary key, market text, size size);
insert into items values ('pen', 'north', row('S', 1)), ('ink', 'south', row('L', 9));
"""
NORTH = ("--user", "a", "--claims", '{"market": "north"}')


@dataclass
class Author:
    """Somebody with a shell and a service config that names these sources; new.yaml has `NEW`."""

    folder: Path
    run: Run

    def told(self, *arguments: str, code: int = 0) -> Outcome:
        outcome = self.run(*arguments)
        assert outcome.code == code, outcome
        return outcome

    def data(self, *arguments: str, code: int = 0) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.told(*arguments, "--json", code=code).out)
        return found


@pytest.fixture
def sources(new_sources: NewSources) -> Sources:
    """Two shards of shops, each with an order `1`, and a catalogue."""
    eu = ORDERS + "insert into orders values ('1', 'pen', 'eu'), ('2', 'ink', 'eu')"
    us = ORDERS + "insert into orders values ('1', 'pen', 'us'), ('3', 'pen', 'us')"
    made = new_sources(SERVED, {"shops/eu": eu, "shops/us": us, "catalogue": ITEMS}).start()
    made.caught_up()
    return made


def write_config(folder: Path, sources: Sources, *more: SourceSettings) -> None:
    connections = [
        {"hostname": each.host, "port": each.port, "database": each.database, "username": each.user, "tag": each.tag,
         "sslmode": "disable"} | ({"shard": each.shard} if each.shard else {})
        for each in (*(each.settings for each in sources), *more)
    ]  # fmt: skip
    config = {
        "replication": {"connections": connections},
        "storage": {"type": "sqlite", "path": str(sources.any.directory)},
    }
    (folder / "headwater.yaml").write_text(json.dumps(config))
    (folder / "new.yaml").write_text(NEW)


@pytest.fixture
def author(sources: Sources, headwater_here: Run, tmp_path: Path) -> Author:
    write_config(tmp_path, sources)
    return Author(tmp_path, headwater_here)


def shown(preview: dict[str, object]) -> set[tuple[str, str, str]]:
    """Source, table and id of each row of a preview."""
    buckets = preview["buckets"]
    assert isinstance(buckets, list)
    return {(row["source"], row["table"], row["id"]) for bucket in buckets for row in bucket["first"]}


OF_NORTH = {
    ("shops/eu", "o", "eu/1"),
    ("shops/us", "o", "us/1"),
    ("shops/us", "o", "us/3"),
    ("catalogue", "items", "pen"),
}


def test_preview_is_of_all_sources(author: Author) -> None:
    found = author.data("rules", "preview", "new.yaml", *NORTH)
    assert shown(found) == OF_NORTH
    assert (found["missing_tables"], found["warnings"]) == ([], [])
    rows = {row["id"]: row["data"] for bucket in found["buckets"] for row in bucket["first"]}  # type: ignore[attr-defined]
    assert rows["pen"]["size"] == '{"label":"S","width":1}', "as the type of that source has it"
    text = author.told("rules", "preview", "new.yaml", *NORTH).out
    assert "  o  us/1  source shops/us  {" in text


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (("shops/us",), {"shops/us"}),
        (("shops",), {"shops/eu", "shops/us"}),
        (("shops/eu", "catalogue"), {"shops/eu", "catalogue"}),
    ],
)
def test_preview_of_some_sources(author: Author, names: tuple[str, ...], wanted: set[str]) -> None:
    chosen = [word for name in names for word in ("--source", name)]
    found = author.data("rules", "preview", "new.yaml", *NORTH, *chosen)
    assert shown(found) == {each for each in OF_NORTH if each[0] in wanted}, (
        "what leads to them is looked up everywhere"
    )
    assert found["missing_tables"] == []


def test_an_unknown_source_is_refused(author: Author) -> None:
    for command in (("rules", "preview", "new.yaml", *NORTH), ("rules", "diff", "new.yaml"),
                    ("explain", "row", "a", "orders", "1")):  # fmt: skip
        outcome = author.told(*command, "--source", "nobody", code=1)
        assert "there is no source nobody" in outcome.err
        assert "use one of: shops/eu, shops/us, catalogue" in outcome.err


def test_diff_counts_the_rows_of_all(author: Author) -> None:
    found = author.data("rules", "diff", "new.yaml", "--all")
    (changed,) = [each for each in found["definitions"] if each["change"] == "changed"]  # type: ignore[attr-defined]
    assert changed["tables"] == ["shops.public.orders"]
    assert changed["to_download"]["rows"] == 4
    assert changed["to_download"]["tables"] == [
        "public.orders of source shops/eu",
        "public.orders of source shops/us",
    ]
    alone = author.data("rules", "diff", "new.yaml", "--all", "--source", "shops/eu")
    (changed,) = [each for each in alone["definitions"] if each["change"] == "changed"]  # type: ignore[attr-defined]
    assert changed["to_download"]["rows"] == 2


def test_explain_tells_the_source_of_a_row(author: Author, sources: Sources) -> None:
    claims = ("--claims", '{"market": "north"}')
    both = author.data("explain", "row", "a", "orders", "1", *claims)
    assert {row["source"] for row in both["rows"]} == {"shops/eu", "shops/us"}  # type: ignore[attr-defined]
    assert len(both["places"]) == 2  # type: ignore[arg-type]
    text = author.told("explain", "row", "a", "orders", "1", *claims).out
    assert "row 1 of public.orders, source shops/us, stream orders: gives it" in text
    hidden = author.data("explain", "row", "a", "shops.public.orders", "2", *claims, code=1)
    assert [row["source"] for row in hidden["rows"]] == ["shops/eu"]  # type: ignore[attr-defined]
    item = author.data("explain", "row", "a", "catalogue.public.items", "pen", *claims)
    assert item["included"] is True
    sources.redeploy(NEW)
    sources.caught_up()
    for row_id, source in (("eu/1", "shops/eu"), ("us/3", "shops/us")):
        told = author.data("explain", "row", "a", "o", row_id, *claims)
        assert [row["source"] for row in told["rows"]] == [source]  # type: ignore[attr-defined]
    hidden = author.data("explain", "row", "a", "o", "eu/2", *claims, code=1)
    assert [(row["source"], row["id"]) for row in hidden["rows"]] == [("shops/eu", "2")]  # type: ignore[attr-defined]


def test_a_source_that_is_away_is_named(author: Author, sources: Sources) -> None:
    away = SourceSettings("127.0.0.1", "gone", "app", port=1025, sslmode="disable", tag="crm")
    write_config(author.folder, sources, away)
    deals = "  deals: {auto_subscribe: true, query: SELECT * FROM crm.public.deals WHERE owner = auth.user_id()}\n"
    wrong = "  wrong: {auto_subscribe: true, query: SELECT * FROM catalogue.public.item WHERE owner = auth.user_id()}\n"
    (author.folder / "new.yaml").write_text(NEW + deals)
    found = author.data("rules", "preview", "new.yaml", *NORTH)
    assert shown(found) == OF_NORTH
    assert found["missing_tables"] == ["public.deals of source crm"]
    diff = author.data("rules", "diff", "new.yaml", "--all")
    assert diff["missing_tables"] == ["public.deals of source crm"]
    assert diff["unsent"] == [], "nothing is said about tables that nobody could look at"
    assert "not with those of source crm: [HW_2001]" in str(diff["notes"])
    (author.folder / "new.yaml").write_text(NEW + deals + wrong)
    checked = author.told("rules", "check", "new.yaml", code=1)
    assert "no table `item` in schema `public` of source `catalogue`" in checked.err
    assert "deals" not in checked.err
    assert "not with those of source crm: [HW_2001]" in checked.err


def test_types_of_a_source_that_is_away(author: Author, sources: Sources) -> None:
    config = json.loads((author.folder / "headwater.yaml").read_text())
    config["replication"]["connections"][2]["port"] = 1025
    (author.folder / "headwater.yaml").write_text(json.dumps(config))
    found = author.data("rules", "preview", "new.yaml", *NORTH)
    assert shown(found) == OF_NORTH
    assert "source catalogue can't be asked about the types that it defines" in str(found["warnings"])


def test_operators_are_told_of_all_sources(sources: Sources) -> None:
    settings = AdminSettings((OPERATOR,), sources.any.address, (*(each.settings for each in sources), NOWHERE))
    with running_admin(settings) as admin:
        check_answers(admin)


def check_answers(admin: AdminEndpoint) -> None:
    ours, client = "/api/headwater/v1", {"user": "a", "claims": {"market": "north"}}
    assert shown(admin.post(f"{ours}/preview", content=NEW, client=client)) == OF_NORTH
    alone = admin.post(f"{ours}/preview", content=NEW, client=client, sources=["shops/us"])
    assert shown(alone) == {each for each in OF_NORTH if each[0] == "shops/us"}
    diff = admin.post(f"{ours}/diff", content=NEW)
    (changed,) = [each for each in diff["definitions"] if each["change"] == "changed"]
    assert changed["to_download"]["rows"] == 4
    row = admin.post(f"{ours}/explain/row", client=client, table="orders", id="1")
    assert {each["source"] for each in row["rows"]} == {"shops/eu", "shops/us"}
    body = {"client": client, "table": "orders", "id": "1", "sources": ["nowhere"]}
    refused = admin.refusal("POST", f"{ours}/explain/row", 404, json=body)
    assert refused["code"] == "HW_6202"


def test_ids_of_shards_are_doubted(author: Author) -> None:
    (author.folder / "served.yaml").write_text(SERVED)
    checked = author.told("rules", "check", "served.yaml", "new.yaml", "--warnings-as-errors")
    assert "two shards may have rows of `shops.public.orders` with the same id" in checked.err
    assert checked.err.count("HW_R211") == 1, "new.yaml selects row_id()"
    unknown = author.told("rules", "check", "served.yaml", "--no-schema")
    assert "HW_R211" not in unknown.err, "nobody knows of shards"


def test_the_client_schema_has_the_tables_of_all(author: Author) -> None:
    code = author.told("rules", "schema", "new.yaml", "--language", "sql", "--schema").out
    assert '"size" TEXT' in code, "of the catalogue"
    assert '"note" TEXT' in code, "of the shops"


def test_migration_is_checked_in_all_sources(author: Author, sources: Sources) -> None:
    config = json.loads((author.folder / "headwater.yaml").read_text())
    config["sync_config"] = {"path": "new.yaml"}
    (author.folder / "headwater.yaml").write_text(json.dumps(config))
    sources.stop()
    sources["catalogue"].source.execute("drop publication headwater")
    told = " ".join(author.run("migrate", "check").out.split())
    assert "catalogue: [PSYNC_S1141]" in told
    assert "shops/eu: 127.0.0.1" in told, "which is ready"
    assert "no source with tables is called" not in told
    assert "rules compared with the tables of source shops/eu" in told
