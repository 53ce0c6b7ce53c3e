"""Where the service config and the sync config come from: files, environment variables, base64, JSON."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from headwater.cli.config import load_config
from headwater.config import ConfigSource
from headwater.config.document import ConfigError
from headwater.storage.address import SqliteAddress
from tests.unit.config.configs import MINIMAL, load


def test_relative_paths(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "sync.yaml").write_text("streams: {}")
    (folder / "headwater.yaml").write_text(MINIMAL)
    config = load_config(ConfigSource(path=Path("etc/headwater.yaml")), {}, tmp_path)
    assert config.sync_text() == "streams: {}"
    assert config.storage == SqliteAddress(str(folder / "data"))


@pytest.mark.parametrize(
    ("written", "value", "port"),
    [("!env PORT::number", "9000", 9000), ("!env PORT", "9001", 9001), ("!env PORT::string", "9002", 9002)],
)
def test_env_values(tmp_path: Path, written: str, value: str, port: int) -> None:
    assert load(tmp_path, f"port: {written}", PORT=value).port == port


def test_empty_variable(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL + "host: !env HOST", HOST="").host == "0.0.0.0"


@pytest.mark.parametrize("value", ["true", "FALSE"])
def test_boolean_variable(tmp_path: Path, value: str) -> None:
    text = "sync_config: {content: 'x', exit_on_error: !env STRICT::boolean}"
    config = load(tmp_path, text, STRICT=value).sync_config
    assert config is not None
    assert config.exit_on_error is (value == "true")


@pytest.mark.parametrize("name", ["POWERSYNC_CONFIG_B64", "HEADWATER_CONFIG_B64"])
def test_base64_config(tmp_path: Path, name: str) -> None:
    encoded = base64.encodebytes(b"port: 9000").decode()
    assert load_config(ConfigSource(), {name: encoded}, tmp_path).port == 9000


def test_precedence(tmp_path: Path) -> None:
    (tmp_path / "headwater.yaml").write_text("port: 1")
    (tmp_path / "other.yaml").write_text("port: 2")
    environment = {"POWERSYNC_CONFIG_PATH": "other.yaml"}
    assert load_config(ConfigSource(), {}, tmp_path).port == 1
    assert load_config(ConfigSource(), environment, tmp_path).port == 2
    assert load_config(ConfigSource(path=Path("headwater.yaml")), environment, tmp_path).port == 1


def test_json_is_read_too(tmp_path: Path) -> None:
    text = json.dumps({"port": 9000, "sync_config": {"content": "streams: {}"}}, indent="\t")
    assert load(tmp_path, text, "config.json").port == 9000
    encoded = base64.b64encode(text.encode()).decode()
    assert load_config(ConfigSource(base64=encoded), {}, tmp_path).port == 9000


@pytest.mark.parametrize("name", ["POWERSYNC_SYNC_CONFIG_B64", "POWERSYNC_SYNC_RULES_B64"])
def test_base64_sync_config(tmp_path: Path, name: str) -> None:
    encoded = base64.b64encode(b"streams: {a: 1}").decode()
    assert load(tmp_path, MINIMAL, **{name: encoded}).sync_text() == "streams: {a: 1}"


@pytest.mark.parametrize("key", ["sync_config", "sync_rules"])
def test_inline_sync_config(tmp_path: Path, key: str) -> None:
    assert load(tmp_path, f"{key}:\n  content: |\n    streams: {{}}\n").sync_text() == "streams: {}\n"


def test_anchors_and_merge_keys(tmp_path: Path) -> None:
    text = """
    x-defaults: &defaults {sslmode: disable, username: u, database: d}
    replication: {connections: [{<<: *defaults, hostname: h, database: other}]}
    """
    config = load(tmp_path, text)
    assert (config.source().user, config.source().database) == ("u", "other")


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--config FILE, write one by `headwater init`, or try `headwater dev`"):
        load_config(ConfigSource(), {}, tmp_path)


def test_base64_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not base64 of UTF-8 text"):
        load_config(ConfigSource(base64="%%%"), {}, tmp_path)


def test_missing_sync_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no sync config is given.*sync_config: \{path: sync.yaml\}"):
        load(tmp_path, "port: 1").sync_text()
    with pytest.raises(ConfigError, match=r"can't be read: No such file .*sync\.yaml"):
        load(tmp_path, MINIMAL).sync_text()


def test_env_file(tmp_path: Path) -> None:
    file = tmp_path / "there" / "headwater.yaml"
    file.parent.mkdir()
    file.write_text("api: {tokens: [!env PS_A, !env PS_B]}")
    file.with_name(".env").write_text("# ours\nPS_A='it\\'s ${x}, as said'\nPS_B=file\n")
    config = load_config(ConfigSource(path=file), {"PS_B": "of the environment"}, tmp_path)
    assert [token.text for token in config.api.tokens] == ["it's ${x}, as said", "of the environment"]
