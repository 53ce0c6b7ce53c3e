"""`replication.connections_from`: connections in lists, and every way in which a list can be wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from headwater.cli.config import ServiceConfig, load_config
from headwater.config import ConfigSource
from headwater.errors import HeadwaterError

MAIN = {"tag": "main", "uri": "postgresql://headwater:hush@main.example/app"}
ACME = "{shard: acme, uri: 'postgresql://headwater:hush@acme.example/app'}"
GLOBEX = "{shard: globex, uri: 'postgresql://headwater:hush@globex.example/app'}"


def load(folder: Path, text: str | None, upload: Mapping[str, object] | None = None, **more: object) -> ServiceConfig:
    """A config with a connection, and a list with this text."""
    if text is not None:
        (folder / "tenants.yaml").write_text(text, encoding="utf-8")
    listed = {"file": "tenants.yaml", "defaults": {"tag": "tenants"}}
    replication = {"connections": [MAIN], "connections_from": [listed], **more}
    config = {"replication": replication, "client_auth": {"jwks": {"keys": []}, "audience": ["app"]}, "upload": upload}
    path = folder / "headwater.json"
    path.write_bytes(orjson.dumps(config))
    return load_config(ConfigSource(path=path), {}, folder)


def warnings(config: ServiceConfig) -> list[str]:
    return [each for each in config.warnings if each.startswith("replication")]


def names(config: ServiceConfig) -> list[str]:
    return [source.name for source in config.sources]


@pytest.mark.parametrize("text", [f"- {ACME}\n- {GLOBEX}", f"[{ACME}, {GLOBEX}]"])
def test_connections_of_a_list(tmp_path: Path, text: str) -> None:
    config = load(tmp_path, text)
    assert names(config) == ["main", "tenants/acme", "tenants/globex"]
    assert [source.host for source in config.sources] == ["main.example", "acme.example", "globex.example"]
    assert config.unread_lists == ()
    assert config.reread_seconds == 60


def test_only_a_list(tmp_path: Path) -> None:
    assert names(load(tmp_path, f"- {ACME}", connections=[])) == ["tenants/acme"]


def test_row_says_otherwise_than_the_defaults(tmp_path: Path) -> None:
    assert names(load(tmp_path, f"- {ACME.replace('{', '{tag: vip, ')}")) == ["main", "vip/acme"]


def test_without_lists_nothing_is_read_again(tmp_path: Path) -> None:
    assert load(tmp_path, None, connections_from=None).reread_seconds == 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "can't be read: No such file"),
        ("", "must be a list of mappings, not a mapping"),
        ("[]", "it is empty"),
        ("- acme", "must be a list of mappings"),
        ("- {", "not valid YAML"),
        (f"- {ACME}\n- {{shard: globex, uri: 'postgresql://headwater:hush@/app'}}", "row 2.hostname: neither"),
        (f"- {ACME}\n- {ACME}", "row 2.tag: another connection is called tenants/acme, too"),
        (f"- {ACME.replace('{', '{tag: main, ')}", "row 1.shard: another connection has the tag main, too"),
        (f"- {ACME.replace('shard', 'chard')}", "row 1.chard: unknown key"),
        (f"- {ACME.replace('acme,', '{a: b},')}", "row 1.shard: must be text"),
        (f"- {ACME}\n- {GLOBEX.replace('hush', 'hu@sh')}", "row 2.uri: has an @"),
    ],
)
def test_list_that_is_wrong(tmp_path: Path, text: str | None, why: str) -> None:
    config = load(tmp_path, text)
    assert names(config) == ["main", "tenants/acme"] if text and text.startswith(f"- {ACME}") else ["main"]
    (unread,) = config.unread_lists
    assert unread.startswith("[HW_7011] replication.connections_from[0], tenants.yaml: ")
    assert why in unread
    assert "hu" not in unread.replace("tenants", ""), "neither login nor password"


def test_wrong_row_stops_no_other(tmp_path: Path) -> None:
    rows = [ACME, *["{shard: 'a b'}"] * 7, GLOBEX]
    config = load(tmp_path, "".join(f"- {row}\n" for row in rows))
    assert names(config) == ["main", "tenants/acme", "tenants/globex"]
    assert len(config.unread_lists) == 6
    assert config.unread_lists[-1].endswith("2 more rows have errors")


def test_warnings_of_rows(tmp_path: Path) -> None:
    unverified = [each.replace("{", "{sslmode: require, ") for each in (ACME, GLOBEX)]
    config = load(tmp_path, f"- {unverified[0]}\n- {unverified[1]}")
    (warning,) = warnings(config)
    assert warning.startswith("replication.connections_from[0]: tenants.yaml: row 1.sslmode: require encrypts, but")
    assert warning.endswith("(and 1 more row alike)")
    assert "hush" not in warning


def test_row_that_is_left_out_has_no_warnings(tmp_path: Path) -> None:
    wrong = ACME.replace("{", "{sslmode: require, port: 1, ")
    assert warnings(load(tmp_path, f"- {wrong}\n- {GLOBEX}")) == []


def test_uploads_to_a_source_that_is_not_known(tmp_path: Path) -> None:
    upload = {"role": "app", "tables": {"notes": {"source": "tenants"}}}
    assert load(tmp_path, f"- {ACME}", upload=upload).upload is not None
    config = load(tmp_path, "[]", upload=upload)
    assert config.upload is None
    assert "no upload is taken meanwhile" in config.unread_lists[-1]


@pytest.mark.parametrize("listed", [{}, {"file": "a", "query": "b"}])
def test_list_that_says_not_where_it_is(tmp_path: Path, listed: dict[str, str]) -> None:
    with pytest.raises(HeadwaterError, match="must give either a file, or a uri and a query"):
        load(tmp_path, None, connections_from=[listed])


def test_no_source_is_known(tmp_path: Path) -> None:
    with pytest.raises(HeadwaterError, match=r"HW_7011.*no source is known"):
        load(tmp_path, "[]", connections=[]).chosen(())
