"""From `headwater init` on a database to a device in Python that has its user's rows, and nobody else's."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from dotenv import dotenv_values
from ruamel.yaml import YAML

from headwater.cli.init.hosts import WRITER
from headwater.embedded.node import find_node
from headwater_client import Database, DownloadConnector
from tests.support.command import headwater_here
from tests.support.example_schemas import GIVEN, NAMED, USERS, make_django_tables, make_example
from tests.support.fix_browser import Browser
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import Service, free_port
from tests.support.node_process import npm_ci
from tests.support.waiting import wait_until
from tests.support.web_page import DEMO

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


def init(source: SourceDb, folder: Path, *more: str) -> App:
    uri = f"postgresql://postgres@127.0.0.1:{source.server.port}/{source.name}"
    done = headwater_here("init", "--yes", "--sdk", "python", "--uri", uri, *more, cwd=folder)
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


def test_device_has_rows_of_its_user(
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
def test_commands_of_init_work(name: str, source_db: SourceDb, launch_module: Launch, tmp_path: Path) -> None:
    if name == DJANGO:
        make_django_tables(source_db)
    else:
        make_example(source_db, name)
    app = init(source_db, tmp_path, *(["--users", NAMED[name]] if name in NAMED else []))
    config, port = tmp_path / "headwater.yaml", free_port()
    text = config.read_text().replace("\nport: 8080", f"\nport: {port}")
    config.write_text(text.replace("admin_port: 8081", f"admin_port: {free_port()}"))
    running = launch_module("headwater", "serve", "--config", str(config))
    wait_until(lambda: "following the stream" in running.output or not running.alive, "the snapshot by Spark", 600)
    assert running.alive, running.output
    running.wait_ready(port, "/probes/readiness", 120)
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


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def writer(source_db: SourceDb) -> Iterator[str]:
    """The role that `init` proposes to write as. Roles belong to the server, so it goes with the test."""
    yield WRITER
    if source_db.fetch("select from pg_roles where rolname = %s", WRITER):
        source_db.execute(f"drop owned by {WRITER}; drop role {WRITER}")


@contextmanager
def previewed(folder: Path, port: int) -> Iterator[str]:
    """Build the page with the packages of the demo app, which are those that it names, and serve it."""
    node = find_node()
    npm_ci(DEMO)
    (folder / "node_modules").symlink_to(DEMO / "node_modules")
    build = [*node.npm, "run", "build", "--silent"]
    built = subprocess.run(
        build, cwd=folder, env=node.environment(os.environ), capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    command = [str(node.node), "node_modules/vite/bin/vite.js", "preview", "--port", str(port), "--strictPort"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as process:
        try:
            yield f"http://localhost:{port}/"
        finally:
            process.terminate()


def test_written_page_reads_and_writes(
    source_db: SourceDb,
    deploy: Deploy,
    serve: Callable[..., Service],
    browser: Browser,
    writer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_example(source_db, "prisma")
    source_db.execute("alter table \"Job\" add check (title <> 'Refuse me')")
    monkeypatch.chdir(tmp_path)
    uri = f"postgresql://postgres@127.0.0.1:{source_db.server.port}/{source_db.name}"
    done = headwater_here("init", "-y", "--app", "web", "--upload", "--uri", uri, "-d", "my/app", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "taken: public.Technician (has passwordHash, has email, named by Session, 2 tables refer to it)" in done.out
    assert "--users: public.Customer (has email, 1 table refers to it)" in done.out
    folder = tmp_path / "my" / "app"
    source_db.execute((folder / "policies.sql").read_text())
    prepared = headwater_here("source", "prepare", "--upload", cwd=folder)
    assert (prepared.code, "row-level" in prepared.err) == (0, False), prepared.err

    deployment = deploy((folder / "sync.yaml").read_text()).start()
    config = YAML(typ="safe").load((folder / "headwater.yaml").read_text().replace("!env ", ""))
    secret = dotenv_values(folder / ".env")["PS_JWT_SECRET"]
    config["client_auth"]["jwks"]["keys"][0]["k"] = secret
    service = serve(deployment, upload=config["upload"], client_auth=config["client_auth"])
    connector = folder / "app" / "src" / "connector.ts"
    connector.write_text(connector.read_text().replace("http://localhost:8080", service.endpoint))
    with previewed(folder / "app", free_port()) as page:
        wait_until(lambda: _answers(page), "the page to be served")
        token = f"{page}development/token?user=cltech1"
        assert httpx.get(token).text.count(".") == 2
        assert httpx.get(token, headers={"Sec-Fetch-Site": "same-site"}).status_code == 403
        browser.goto(page)
        browser.wait_for("#rows input[value='of Ann']")
        assert browser.attributes("#rows input", "value") == ["of Ann"]
        browser.type("#new [name=title]", "Repair the oven")
        browser.press("Enter")
        browser.wait_for("#rows input[value='Repair the oven']")
        rows = 'select title, "technicianId", "customerId", priority::text from "Job" where title like \'Repair%\''
        expected = [("Repair the oven", "cltech1", "clcust1", "LOW")]
        wait_until(lambda: source_db.fetch(rows) == expected, "the new row to reach the source")
        browser.type("#new [name=title]", "Refuse me")
        browser.press("Enter")
        browser.wait_for("#refused button")
        browser.wait_gone("#rows input[value='Refuse me']")
        browser.click("#refused button")
        browser.wait_gone("#refused button")
        source_db.execute("update \"Job\" set title = 'changed' where id = 'cljob1'")
        browser.wait_for("#rows input[value='changed']")
        assert browser.texts("#trouble") == [""]
        assert browser.findings() == []

    # the id that the sync config gives a row of a join table is the one by which an upload finds it
    gas, led = '["cljob1","clgas"]', '["cljob1","clled"]'
    assert ("JobSkill", gas) in deployment.rows("cltech1")
    token = headwater_here("token", "cltech1", cwd=folder).out.strip()
    crud = [
        {"op_id": 1, "op": "PATCH", "type": "JobSkill", "id": gas, "data": {"hours": 4}},
        {"op_id": 2, "op": "PUT", "type": "JobSkill", "id": led, "data": {"hours": 1}},
    ]
    answer = httpx.post(
        f"{service.endpoint}/upload",
        headers={"authorization": f"Token {token}"},
        json={"client_id": "another", "transactions": [{"crud": crud}]},
    )
    assert [each["outcome"] for each in answer.json()["transactions"]] == ["applied"], answer.text
    assert source_db.fetch('select "skillId", hours from "JobSkill" where "jobId" = \'cljob1\' order by 1') == [
        ("clgas", 4.0), ("clled", 1.0),
    ]  # fmt: skip
    wait_until(lambda: ("JobSkill", led) in deployment.rows("cltech1"), "the row to come back")
