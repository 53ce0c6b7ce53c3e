"""From `headwater init` on a database to a device in Python that has its user's rows, and nobody else's."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater_client import Database, DownloadConnector
from tests.support.command import headwater_here
from tests.support.django_tables import make_django_tables
from tests.support.example_schemas import GIVEN, USERS, make_example
from tests.support.fix_headwater import Deploy, wait_until
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import Service, free_port

pytestmark = pytest.mark.e2e

DJANGO = "django itself"
SHOWN = GIVEN | {DJANGO: {"auth_user", "app_notebook", "app_page"}}
CHANGES = {
    "pagila": ("insert into payment values (3, 1, 1, 1, 4.99, '2022-03-01')", "select amount from payment", "4.99"),
    "supabase": ("update todos set task = 'changed'", "select task from todos", "changed"),
    "rails": ("update projects set name = 'changed'", "select name from projects", "changed"),
    "keyless": ("update lists set name = 'changed'", "select name from lists", "changed"),
    DJANGO: ("insert into app_notebook_members (notebook_id, user_id) values (2, 1)", "select text from app_page",
             "of bob"),
}  # fmt: skip
"""For each database a change, and where Ann's device shows what."""


@dataclass(frozen=True, slots=True)
class App:
    """What `headwater init` wrote into a folder, and the tables that it printed for an app in Python."""

    folder: Path
    tables: dict[str, dict[str, str]]


def init(source: SourceDb, folder: Path) -> App:
    uri = f"postgresql://postgres@127.0.0.1:{source.server.port}/{source.name}"
    done = headwater_here("init", "--yes", "--sdk", "python", "--uri", uri, cwd=folder)
    assert done.code == 0, done.err
    assert headwater_here("rules", "check", "sync.yaml", "--schema", cwd=folder).code == 0
    assert headwater_here("source", "prepare", cwd=folder).code == 0
    code = done.out[done.out.index("TABLES") : done.out.index("# connect.py")]
    names: dict[str, dict[str, dict[str, str]]] = {}
    exec(code, names)  # as an app would
    return App(folder, names["TABLES"])


@contextmanager
def device(app: App, user: str, endpoint: str, token: str) -> Iterator[Database]:
    with Database(app.folder / f"{user}.db", app.tables) as database:
        database.connect(DownloadConnector(endpoint, token))
        database.wait_for_first_sync(timeout=120)
        yield database


def contents(app: App, database: Database) -> dict[tuple[str, str], str]:
    """All rows, by table and id."""
    return {
        (table, str(row["id"])): str(dict(row))
        for table in app.tables
        for row in database.rows(f'select * from "{table}"')
    }


def apart(ann: dict[tuple[str, str], str], bob: dict[tuple[str, str], str], shown: set[str]) -> None:
    assert {table for table, _ in (*ann, *bob)} == shown
    assert not {key for key in ann if key in bob}
    assert not re.search("of bob", str(list(ann.values())), re.IGNORECASE)
    assert not re.search("of ann", str(list(bob.values())), re.IGNORECASE)
    assert "password" not in str([*ann.values(), *bob.values()])


def test_a_device_has_the_rows_of_its_user(
    source_db: SourceDb, deploy: Deploy, serve: Callable[..., Service], tmp_path: Path
) -> None:
    make_example(source_db, "supabase")
    app = init(source_db, tmp_path)
    service = serve(deploy((tmp_path / "sync.yaml").read_text()).start())
    ann, bob = USERS["supabase"]
    with (
        device(app, ann, service.endpoint, service.token(ann)) as of_ann,
        device(app, bob, service.endpoint, service.token(bob)) as of_bob,
    ):
        apart(contents(app, of_ann), contents(app, of_bob), SHOWN["supabase"])


@pytest.mark.long
@pytest.mark.timeout(900)  # a Spark of its own, which takes minutes to start on a machine that is busy
@pytest.mark.parametrize("name", CHANGES)
def test_by_the_commands_that_init_names(name: str, source_db: SourceDb, launch_module: Launch, tmp_path: Path) -> None:
    if name == DJANGO:
        make_django_tables(source_db)
    else:
        make_example(source_db, name)
    app = init(source_db, tmp_path)
    config, port = tmp_path / "headwater.yaml", free_port()
    text = config.read_text().replace("\nport: 8080", f"\nport: {port}")
    config.write_text(text.replace("admin_port: 8081", f"admin_port: {free_port()}"))
    running = launch_module("headwater", "serve", "--config", str(config))
    wait_until(lambda: "following the stream" in running.output or not running.alive, "the snapshot by Spark", 600)
    assert running.alive, running.output
    wait_until(lambda: _ready(port), "the endpoint")
    assert headwater_here("doctor", cwd=tmp_path).code == 0

    ann, bob = USERS.get(name, ("1", "2"))
    token = {user: headwater_here("token", user, cwd=tmp_path).out.strip() for user in (ann, bob)}
    endpoint = f"http://127.0.0.1:{port}"
    with device(app, ann, endpoint, token[ann]) as of_ann, device(app, bob, endpoint, token[bob]) as of_bob:
        apart(contents(app, of_ann), contents(app, of_bob), SHOWN[name])
        statement, query, expected = CHANGES[name]
        source_db.execute(statement)
        wait_until(
            lambda: expected in {value for row in of_ann.rows(query) for value in dict(row).values()},
            "the change to reach the device",
        )


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/probes/readiness", timeout=5) as answer:
            return bool(json.load(answer))
    except OSError:
        return False
