"""`upload` with several sources: where each table goes, as the config says it."""

from __future__ import annotations

from typing import Any

import pytest

from headwater.source.connect import SourceSettings
from headwater.source.upload.settings import TableRule, UploadSettings, UploadTarget
from tests.support.read_uploads import read_uploads


def source(tag: str, shard: str | None = None) -> SourceSettings:
    return SourceSettings(f"{tag}.example", "app", "headwater", tag=tag, shard=shard)


ONE = (source("default"),)
TWO = (source("default"), source("crm"))
GROUP = (source("default"), source("orders", "eu"), source("orders", "us"))


def uploads(tables: dict[str, Any], configured: tuple[SourceSettings, ...], **more: Any) -> UploadSettings:
    found, errors = read_uploads({"role": "app", "tables": tables, **more}, configured)
    assert found is not None, errors
    return found


@pytest.mark.parametrize(
    ("sources", "table", "goes", "named"),
    [
        (ONE, {}, "default", "public.t"),
        (ONE, {"table": "shop.t"}, "default", "shop.t"),
        (ONE, {"table": "default.t"}, "default", "default.t"),
        (ONE, {"table": "default.shop.t"}, "default", "shop.t"),
        ((source("crm"),), {}, "crm", "public.t"),
        (TWO, {}, "default", "public.t"),
        (TWO, {"table": "shop.t"}, "default", "shop.t"),
        (TWO, {"table": "crm.t"}, "crm", "public.t"),
        (TWO, {"table": "crm.shop.t"}, "crm", "shop.t"),
        (TWO, {"source": "crm"}, "crm", "public.t"),
        (TWO, {"source": "crm", "table": "shop.t"}, "crm", "shop.t"),
        (TWO, {"source": "default", "table": "crm.t"}, "default", "crm.t"),
        (GROUP, {"source": "orders/us"}, "orders/us", "public.t"),
    ],
)
def test_where_a_table_is(sources: tuple[SourceSettings, ...], table: dict[str, Any], goes: str, named: str) -> None:
    found = uploads({"t": table}, sources).by_source()
    assert list(found) == [goes]
    assert [rule.qualified_name for rule in found[goes].tables.values()] == [named]
    assert found[goes].login.name == goes


def test_each_source_has_its_own_tables_and_the_same_limits() -> None:
    settings = uploads({"a": {}, "b": {"table": "crm.b", "columns": ["x"]}}, TWO, max_connections=3)
    first, second = settings.by_source().values()
    assert (first.tables, second.tables) == (
        {"a": TableRule("public", "a")},
        {"b": TableRule("public", "b", columns=frozenset("x"))},
    )
    assert (first.max_connections, second.max_connections) == (3, 3)
    assert settings.targets == {"a": UploadTarget(("default",)), "b": UploadTarget(("crm",))}
    assert second.targets == settings.targets


def test_shards_by_claim_and_by_column() -> None:
    shards = ("orders/eu", "orders/us")
    settings = uploads(
        {
            "a": {"source": "orders", "shard": {"claim": "app.region"}},
            "b": {"table": "orders.b", "shard": {"column": "tenant", "map": {"acme": "us", "7": "eu"}}},
        },
        GROUP,
    )
    assert settings.targets == {
        "a": UploadTarget(shards, ("app", "region"), "", {"eu": "orders/eu", "us": "orders/us"}),
        "b": UploadTarget(shards, (), "tenant", {"acme": "orders/us", "7": "orders/eu"}),
    }
    assert list(settings.by_source()) == list(shards)


def test_login_of_uploads_is_that_of_each_source() -> None:
    settings = uploads({"a": {}, "b": {"source": "crm"}}, TWO, username="writer", password="hush")
    assert [each.login.user for each in settings.by_source().values()] == ["writer", "writer"]
    assert [each.login.host for each in settings.by_source().values()] == ["default.example", "crm.example"]


def test_source_has_a_role_and_a_login_of_its_own() -> None:
    of_crm = {"role": "crm_app", "username": "crm_writer", "password": "hush"}
    first, second = uploads({"a": {}, "b": {"source": "crm"}}, TWO, sources={"crm": of_crm}).by_source().values()
    assert (first.role, first.login.user, first.login.login_in) == ("app", "headwater", "replication.connections")
    assert (second.role, second.login.user, second.login.password) == ("crm_app", "crm_writer", "hush")
    assert second.login.login_in == "upload.sources.crm"
    assert (second.login.name, second.login.host) == ("crm", "crm.example")


def test_source_without_a_login_of_its_own_has_that_of_all() -> None:
    given = {"username": "writer", "password": "hush", "sources": {"crm": {"role": "crm_app"}}}
    first, second = uploads({"a": {}, "b": {"source": "crm"}}, TWO, **given).by_source().values()
    assert [(each.role, each.login.user) for each in (first, second)] == [("app", "writer"), ("crm_app", "writer")]
    assert second.login.login_in == "upload"


def test_login_of_a_tag_is_that_of_all_its_shards_but_those_that_are_named() -> None:
    tables = {"a": {"source": "orders", "shard": {"claim": "region"}}}
    given = {"orders": {"username": "all"}, "orders/us": {"username": "us"}}
    found = uploads(tables, GROUP, sources=given).by_source()
    assert {name: each.login.user for name, each in found.items()} == {"orders/eu": "all", "orders/us": "us"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"sources": {"cmr": {"role": "a"}}}, "upload.sources.cmr: there is no source cmr; name one of: default, crm"),
        ({"sources": {"crm": {"password": "a"}}}, "upload.sources.crm.password: is given without a username"),
        ({"sources": {"crm": {"user": "a"}}}, "upload.sources.crm.user: unknown key"),
        ({"role": None, "sources": {"default": {"role": "a"}}}, "no role is given to write as in crm"),
    ],
)
def test_mistakes_in_logins(more: dict[str, Any], said: str) -> None:
    _, errors = read_uploads({"role": "app", "tables": {"a": {}, "b": {"source": "crm"}}, **more}, TWO)
    assert len(errors) == 1
    assert said in errors[0]


@pytest.mark.parametrize(
    ("sources", "table", "said"),
    [
        (TWO, {"source": "nowhere"}, "there is no source nowhere; name one of: default, crm"),
        (TWO, {"table": "nowhere.shop.t"}, None),
        ((source("a"), source("b")), {}, "which source the table is in; add `source`"),
        (GROUP, {"source": "orders"}, "which shard of orders a row is in; add shard: {claim"),
        (GROUP, {"source": "orders", "shard": {}}, "either a claim"),
        (
            GROUP,
            {"source": "orders", "shard": {"claim": "a", "column": "b"}},
            "either a claim",
        ),
        (
            GROUP,
            {"source": "orders", "shard": {"claim": "a", "map": {"x": "asia"}}},
            "no shard asia of orders",
        ),
        (GROUP, {"source": "orders", "shard": {"claim": "a", "of": 1}}, "unknown key"),
        (GROUP, {"source": "orders/eu", "shard": {"claim": "a"}}, "no shards to choose among"),
        (TWO, {"shard": {"claim": "a"}}, "no shards to choose among"),
    ],
)
def test_mistakes(sources: tuple[SourceSettings, ...], table: dict[str, Any], said: str | None) -> None:
    _, errors = read_uploads({"role": "app", "tables": {"t": table}}, sources)
    if said is None:  # a schema with a dot in its name
        assert errors == []
    else:
        assert said in "\n".join(errors)


def test_across_sources() -> None:
    assert not uploads({"t": {}}, TWO).split
    assert uploads({"t": {}}, TWO, across_sources="split").split
    _, errors = read_uploads({"role": "app", "tables": {"t": {}}, "across_sources": "maybe"}, TWO)
    assert "refuse, split" in "\n".join(errors)


GONE = "what devices write to it is refused"


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ({"source": "crm"}, "upload.tables.t.source: there is no source crm"),
        ({"source": "crm", "shard": {"claim": "tenant"}}, "upload.tables.t.source: there is no source crm"),
        ({"table": "crm.shop.t"}, "upload.tables.t.table: there is no source crm"),
        (
            {"source": "orders", "shard": {"claim": "region", "map": {"eu": "eu", "us": "us", "asia": "jp"}}},
            "upload.tables.t.shard.map: asia: there is no shard jp of orders",
        ),
    ],
)
def test_table_of_a_listed_source_that_is_gone(table: dict[str, Any], key: str) -> None:
    upload = {"role": "app", "tables": {"own": {}, "t": table}}
    found, warnings = read_uploads(upload, GROUP, listed=True)
    assert found is not None
    assert warnings == [f"{key} at present: {GONE}"]
    assert "own" in found.by_source()["default"].tables


def test_shard_that_is_left_gets_no_rows_of_others() -> None:
    """Without targets, whatever devices send would go to the only source."""
    table = {"source": "orders", "shard": {"claim": "region"}}
    found, warnings = read_uploads({"role": "app", "tables": {"t": table}}, GROUP[1:2], listed=True)
    assert found is not None, warnings
    assert found.targets == {"t": UploadTarget(("orders/eu",), claim=("region",), shards={"eu": "orders/eu"})}


def test_login_for_a_listed_source_that_is_gone() -> None:
    upload = {"role": "app", "sources": {"crm": {"role": "crm_app"}}, "tables": {"own": {}}}
    found, warnings = read_uploads(upload, ONE, listed=True)
    assert found is not None
    assert warnings == ["upload.sources.crm: there is no source crm at present: it says nothing"]


def test_all_sources_of_uploads_are_gone() -> None:
    found, warnings = read_uploads({"role": "app", "tables": {"t": {"source": "crm"}}}, ONE, listed=True)
    assert found is None
    assert "no upload is taken meanwhile" in warnings[-1]
