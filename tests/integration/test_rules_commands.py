"""Changing the sync config of a running service by command: what was foretold is what devices get."""

from __future__ import annotations

import json
import re
import secrets
from pathlib import Path

import pytest

from tests.support import ruled_configs
from tests.support.command import Run
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.ruled_store import EMBEDDED, RuledStore

SERVED = """\
config: {edition: 3}
streams:
  lists:
    auto_subscribe: true
    query: SELECT * FROM lists WHERE owner = auth.user_id()
"""
EDITED = (
    SERVED.replace("SELECT *", "SELECT id, size, mood")
    + """\
  todos:
    auto_subscribe: true
    query: SELECT * FROM todos WHERE list_id IN (SELECT id FROM lists WHERE owner = auth.user_id())
"""
)


class Commands:
    """`headwater rules …` beside a running replicator."""

    def __init__(self, deployment: Deployment, folder: Path, run: Run) -> None:
        source = deployment.source
        self._folder = folder
        self._run = run
        (folder / "headwater.yaml").write_text(
            f"replication: {{connections: [{{uri: '{source.uri}', sslmode: disable}}]}}\n"
            f"storage: {{type: sqlite, path: '{deployment.directory}'}}\n"
        )

    def run(self, *arguments: str, yaml: str | None = None) -> str:
        """The output of a command that has to succeed; `yaml` is in new.yaml."""
        if yaml is not None:
            (self._folder / "new.yaml").write_text(yaml)
        outcome = self._run("rules", *arguments)
        assert outcome.code == 0, outcome
        return outcome.out

    def preview(self, yaml: str, user: str) -> dict[tuple[str, str], dict[str, object]]:
        """What a preview shows of all rows of a user."""
        out = self.run("preview", "new.yaml", "--user", user, "--rows", "10000", "--json", yaml=yaml)
        found = json.loads(out)
        assert found["warnings"] == []
        return {(row["table"], row["id"]): row["data"] for bucket in found["buckets"] for row in bucket["first"]}


@pytest.fixture
def running(deploy: Deploy, source_db: SourceDb) -> Deployment:
    source_db.execute("create type mood as (name text, level int)")
    source_db.execute("create table lists (id text primary key, owner text, size int, mood mood)")
    source_db.execute("create table todos (id text primary key, list_id text, done boolean)")
    source_db.execute(
        "insert into lists select 'l' || i, 'u' || i % 3, i, row('so', i)::mood from generate_series(1, 300) i"
    )
    source_db.execute("insert into todos select 't' || i, 'l' || i % 300, i % 2 = 0 from generate_series(1, 900) i")
    return deploy(SERVED).start()


@pytest.mark.timeout(400)
def test_commands_foretell_device_until_rollback(
    running: Deployment, source_db: SourceDb, tmp_path: Path, headwater_here: Run
) -> None:
    commands = Commands(running, tmp_path, headwater_here)
    source_db.execute("update lists set size = -size, mood = ('glad', 1) where id = 'l4'")
    before = running.rows("u1")
    buckets = set(running.buckets("u1"))
    foretold = commands.preview(EDITED, "u1")
    assert foretold["lists", "l4"] == {"id": "l4", "size": -4, "mood": '{"name":"glad","level":1}'}
    diff = json.loads(commands.run("diff", "new.yaml", "--json"))
    assert [(each["name"].partition(".")[0], each["change"]) for each in diff["definitions"]] == [
        ("lists", "changed"),
        ("todos", "added"),
    ]
    assert diff["definitions"][0]["to_download"]["rows"] == 300
    assert diff["missing_tables"] == ["public.todos"]

    out = commands.run("deploy", "new.yaml")
    assert "version 2 is served now" in out
    running.yaml = EDITED
    shown = running.rows("u1")
    assert {key: row for key, row in shown.items() if key[0] == "lists"} == foretold
    assert commands.preview(EDITED, "u1") == shown
    assert len([key for key in shown if key[0] == "todos"]) == 300
    assert json.loads(commands.run("diff", "new.yaml", "--json"))["same"] is True

    commands.run("rollback")
    assert commands.run("show") == SERVED
    running.yaml = SERVED
    assert running.rows("u1") == before
    assert set(running.buckets("u1")) == buckets
    states = [each["state"] for each in json.loads(commands.run("versions", "--json"))]
    assert states == ["active", "stopped", "stopped"]


def test_commands_foretell_with_postgres_store(
    source_db: SourceDb, tmp_path: Path, headwater_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_bytes", bytes)  # so that checksums have as many digits in both
    told: list[tuple[str, ...]] = []
    database = f"{{type: postgresql, uri: '{source_db.uri}', sslmode: disable}}"
    for name, storage in (("file", EMBEDDED), ("database", database)):
        folder = tmp_path / name
        folder.mkdir()
        ruled = RuledStore(folder, storage)
        ruled.fill()
        ruled.serve(ruled_configs.SERVED)
        (tmp_path / "new.yaml").write_text(ruled_configs.PROJECTION_EDITED)
        config = ("-c", f"{name}/headwater.yaml")
        preview = headwater_here("rules", "preview", "new.yaml", "--user", "u1", "--json", *config)
        diff = headwater_here("rules", "diff", "new.yaml", *config)
        deploy = headwater_here("rules", "deploy", "new.yaml", "--no-wait", *config)
        ruled.process()
        show = headwater_here("rules", "show", *config)
        ruled.close()
        assert [outcome.code for outcome in (preview, diff, deploy, show)] == [0, 0, 0, 0]
        told.append((preview.out, diff.out.partition("\n")[2], deploy.out, show.out))
    assert told[0] == told[1]
    assert "before: 20 buckets with 420 ops" in told[0][1]
    assert told[0][3] == ruled_configs.PROJECTION_EDITED


FLAWED = """\
config: {edition: 3}
streams:
  lists:
    auto_subscribe: true
    query: SELECT id, nme FROM lists WHERE owner = auth.user_id() AND size = 'large'
  drafts:
    query: SELECT * FROM drafts WHERE owner = auth.user_id()
  each:
    query: SELECT * FROM todos WHERE id = subscription.parameter('id')
"""


@pytest.mark.parametrize("wrong", [False, True], ids=["with warnings", "with errors"])
def test_deploy_reports_all_that_a_check_does(
    running: Deployment, source_db: SourceDb, tmp_path: Path, headwater_here: Run, wrong: bool
) -> None:
    source_db.execute("create table drafts (id text primary key, owner text)")
    Commands(running, tmp_path, headwater_here)
    text = FLAWED + ("  more:\n    query: SELECT * FROM gone WHERE ownr = auth.user_id()\n" if wrong else "")
    (tmp_path / "new.yaml").write_text(text)
    checked = headwater_here("rules", "check", "new.yaml")
    deployed = headwater_here("rules", "deploy", "new.yaml", "--no-wait")
    told = [re.findall(r"\[?(HW_R\d+)\]?", each.err) for each in (checked, deployed)]
    assert sorted(set(told[0])) == sorted(set(told[1]))
    assert len(set(told[0])) >= 3
    assert ["compared with the tables of source default" in each.err for each in (checked, deployed)] == [True, True]
