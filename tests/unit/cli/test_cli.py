"""The command as its user meets it: what helps, what is refused, and in which words."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import click
import pytest

from headwater.cli import serve
from headwater.cli.main import cli
from headwater.cli.supervise import Child
from tests.support.command import Outcome, headwater, headwater_here
from tests.support.ruled_store import write_config

RULES = """\
config:
  edition: 3
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes WHERE owner = auth.user_id()
"""
CONFIG = """\
replication: {connections: [{uri: "postgresql://app@127.0.0.1:1024/shop", sslmode: disable}]}
sync_config: {path: sync.yaml}
"""


def error_of(outcome: Outcome) -> str:
    """The one message of a failed run."""
    assert outcome.code != 0
    assert "Traceback" not in outcome.err + outcome.out
    return outcome.err


def commands(group: click.Group, *path: str) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, each in group.commands.items():
        found += commands(each, *path, name) if isinstance(each, click.Group) else [(*path, name)]
    return found


@pytest.mark.parametrize("path", commands(cli), ids=" ".join)
def test_help_of_every_command(path: tuple[str, ...]) -> None:
    each: click.Command = cli
    for name in path:
        assert isinstance(each, click.Group)
        each = each.commands[name]
    shown = each.get_help(click.Context(each, info_name=" ".join(path)))
    assert re.search(rf"Examples:\s+headwater {' '.join(path)}", shown)
    assert each.help


def test_rules_check(tmp_path: Path) -> None:
    (tmp_path / "sync.yaml").write_text(RULES)
    outcome = headwater("rules", "check", "sync.yaml", "--no-schema", cwd=tmp_path)
    assert (outcome.code, outcome.err) == (0, "note: its tables are not compared with the source: --no-schema\n")
    assert "sync.yaml: ok, 1 stream, 1 bucket definition" in outcome.out


@pytest.mark.parametrize("name", ["serve", "replicate", "api", "start"])
def test_wrong_config(tmp_path: Path, name: str) -> None:
    (tmp_path / "headwater.yaml").write_text(CONFIG + "port: eight\nstorage: {type: mongodb}\n")
    error = error_of(headwater(name, cwd=tmp_path))
    assert "headwater.yaml has 2 errors" in error
    assert "line 3, column 7: [HW_7001] port: must be a whole number" in error
    assert "use the embedded store" in error


def test_serve_with_wrong_rules(tmp_path: Path) -> None:
    (tmp_path / "headwater.yaml").write_text(CONFIG)
    (tmp_path / "sync.yaml").write_text(RULES.replace("auth.user_id()", "auth.user_di()"))
    error = error_of(headwater_here("serve", cwd=tmp_path))
    assert error.count("error [") == 1
    assert not (tmp_path / "headwater-data").exists()


def test_missing_config(tmp_path: Path) -> None:
    error = error_of(headwater_here("serve", cwd=tmp_path))
    assert "pass --config FILE, write one by `headwater init`, or try `headwater dev`" in error


@pytest.mark.parametrize("name", ["serve", "replicate"])
def test_unreachable_source(tmp_path: Path, name: str) -> None:
    (tmp_path / "headwater.yaml").write_text(CONFIG)
    (tmp_path / "sync.yaml").write_text(RULES)
    error = error_of(headwater_here(name, "--source-timeout", "0.2", cwd=tmp_path))
    last = error.splitlines()[-1]
    assert last.startswith("headwater: [HW_2001] the source database cannot be reached")
    assert "Connection refused" in last
    assert "(127.0.0.1:1024/shop)" in last
    assert "check that Postgres runs there" in last


@pytest.mark.parametrize(("options", "told"), [((), []), (("--take-slot",), ["--take-slot"])], ids=["without", "with"])
def test_take_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], told: list[str]) -> None:
    (tmp_path / "headwater.yaml").write_text(CONFIG)
    (tmp_path / "sync.yaml").write_text(RULES)
    children: list[Child] = []
    monkeypatch.setattr(serve, "wait_for_sources", lambda *_: None)
    monkeypatch.setattr(serve, "supervise", lambda started, _: children.extend(started))
    assert headwater_here("serve", *options, cwd=tmp_path).code == 0
    assert {child.name: child.at_first for child in children} == {"replicator": told, "endpoint": ()}


def test_base64_configs(tmp_path: Path) -> None:
    encoded = base64.b64encode(CONFIG.encode()).decode()
    rules = base64.b64encode(RULES.replace("SELECT", "SELEC").encode()).decode()
    error = error_of(headwater_here("replicate", "-c64", encoded, "-sync64", rules, cwd=tmp_path))
    assert "line 6" in error


def test_json_logs(tmp_path: Path) -> None:
    (tmp_path / "headwater.yaml").write_text(CONFIG + "prot: 1\nsystem: {logging: {format: json}}\n")
    (tmp_path / "sync.yaml").write_text(RULES)
    error = error_of(headwater("replicate", "--source-timeout", "0.2", cwd=tmp_path))
    entries = [json.loads(line) for line in error.splitlines()[:-1]]
    assert {entry["level"] for entry in entries} == {"warning"}
    assert any("prot: unknown key, ignored; did you mean port?" in entry["message"] for entry in entries)


def test_runner_type() -> None:
    assert "PS_RUNNER_TYPE" in error_of(headwater_here("start", PS_RUNNER_TYPE="everything"))


def test_wrong_option() -> None:
    assert "No such option" in error_of(headwater_here("serve", "--confg", "x"))


@pytest.mark.parametrize("command", ["serve", "api", "replicate", "doctor", "token u1", "source prepare"])
def test_example_secret(command: str, tmp_path: Path) -> None:
    (tmp_path / "headwater.yaml").write_text("api: {tokens: [!env PS_ADMIN_TOKEN]}\n")
    done = headwater_here(*command.split(), cwd=tmp_path, PS_ADMIN_TOKEN="change-me-admin-token")
    assert done.code != 0
    told = done.out + done.err
    assert "[HW_7010] api.tokens: is the secret of an example, which everybody knows" in told
    assert "openssl rand -hex 32" in told
    assert "change-me" not in told


@pytest.mark.parametrize(
    "command",
    ["store stats", "store forget --contains some-text", "compact", "rules deploy sync.yaml", "rules versions",
     "rules rollback", "rules show", "rules diff sync.yaml", "rules preview sync.yaml --user u1"],
)  # fmt: skip
def test_missing_store(command: str, tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "sync.yaml").write_text(RULES)
    done = headwater_here(*command.split(), cwd=tmp_path)
    there_is_none = f"[HW_8101] there is no store yet ({tmp_path}/store); start `headwater serve`, which creates it"
    assert there_is_none in error_of(done)
    assert (done.code, (tmp_path / "store").exists()) == (1, False)
