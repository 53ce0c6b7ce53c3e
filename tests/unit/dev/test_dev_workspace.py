"""The directory of a `headwater dev`, and the service config in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.api.studio.tokens import Role
from headwater.cli.config import load_config
from headwater.cli.dev import Address, database_session, what_to_try
from headwater.config import ConfigSource
from headwater.dev import find_demo_files
from headwater.dev.sample import UPLOAD
from headwater.dev.workspace import AUDIENCE, StudioLink, WorkspaceError, open_workspace
from headwater.source.connect import SourceSettings
from headwater.storage.address import SqliteAddress
from headwater_rules.compiler.compile import compile_config


def test_temporary_workspace() -> None:
    with open_workspace(None) as workspace:
        workspace.store.mkdir()
        root = workspace.root
        assert root.is_dir()
    assert not root.exists()


def test_temporary_workspace_after_a_failure() -> None:
    made: list[Path] = []

    def fail() -> None:
        with open_workspace(None) as workspace:
            made.append(workspace.root)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not made[0].exists()


def test_kept_workspace(tmp_path: Path) -> None:
    for _ in range(2):
        with open_workspace(tmp_path / "kept") as workspace:
            (workspace.scratch / "spark").touch()
            workspace.store.mkdir(exist_ok=True)
        assert workspace.store.is_dir()
        assert not workspace.scratch.exists()


def test_two_at_once(tmp_path: Path) -> None:
    with (
        open_workspace(tmp_path),
        pytest.raises(WorkspaceError, match="another headwater dev"),
        open_workspace(tmp_path),
    ):
        pass
    with open_workspace(tmp_path):
        pass


def test_impossible_directory(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(WorkspaceError, match=r"file/kept"), open_workspace(file / "kept"):
        pass


def test_written_config(tmp_path: Path) -> None:
    source = SourceSettings("127.0.0.1", "demo", "postgres", port=5433, sslmode="disable")
    files = find_demo_files()
    with open_workspace(tmp_path / "it's here") as workspace:
        workspace.write_config(source, files.rules, "127.0.0.1", 8099, UPLOAD)
        config = load_config(ConfigSource(path=workspace.config), {}, Path("/"))
        assert workspace.config.stat().st_mode & 0o077 == 0
    assert config.warnings == ()
    assert config.source() == source
    assert (config.host, config.port, config.storage) == ("127.0.0.1", 8099, SqliteAddress(str(workspace.store)))
    assert config.auth.audience == {AUDIENCE}
    assert len(config.auth.keys) == 1
    assert [(len(token.text), token.role) for token in config.api.tokens] == [(64, Role.EDIT)]
    plan = compile_config(config.sync_text()).plan
    assert {table.name for table in plan.tables()} >= {"lists", "list_members", "todos", "activity", "announcements"}


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::1", "http://[::1]:80"),
        ("::", "http://[::1]:80"),
        ("demo.example", "http://demo.example:80"),
    ],
)
def test_addresses(host: str, origin: str, tmp_path: Path) -> None:
    session = database_session("postgresql://postgres@127.0.0.1:5433/demo", tmp_path)
    text = what_to_try(Address(host, 80), session, find_demo_files(), None, "s3cret")
    assert f"{origin}/demo/" in text
    assert f"{origin}/demo/studio?key=s3cret " in text
    assert "postgresql://postgres@127.0.0.1:5433/demo" in text


def test_database_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dsn = "postgresql://postgres@127.0.0.1:5433/demo"
    monkeypatch.setenv("PATH", "")
    assert database_session(dsn, tmp_path) == dsn
    folder = tmp_path / "with a blank"
    folder.mkdir()
    (folder / "psql").touch(mode=0o755)
    assert database_session(dsn, folder) == f"'{folder}/psql' {dsn}"


def test_studio_link_works_once(tmp_path: Path) -> None:
    config = tmp_path / "headwater.yaml"
    secret = StudioLink(config).make()
    link = StudioLink(config)
    assert [link.use(each) for each in ("", "wrong", secret[:-1], "\ud800", secret, secret)] == [
        *[False] * 4,
        True,
        False,
    ]
    assert StudioLink(config).make() != secret
    assert (tmp_path / "studio-link").stat().st_mode & 0o077 == 0
