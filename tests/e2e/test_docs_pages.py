"""The shell, SQL and Python of the docs does what the pages say: each page is one session, from top to end."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.source.upload.prepare import prepare_uploads
from headwater.source.upload.settings import TableRule, UploadSettings
from tests.e2e.doc_shell import Shell
from tests.support.command import output_of
from tests.support.doc_blocks import Block, all_blocks
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service, free_port
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

TABLES = """
create table lists (id text primary key, owner_id text, name text);
create table todos (id text primary key, list_id text, owner_id text, title text, done integer);
insert into lists values ('l1', 'user-1', 'home'), ('l2', 'user-2', 'work');
insert into todos values ('t1', 'l1', 'user-1', 'bread', 0);
"""
RULES = auto_streams(
    lists="SELECT * FROM lists WHERE owner_id = auth.user_id()",
    todos="SELECT * FROM todos WHERE list_id IN (SELECT id FROM lists WHERE owner_id = auth.user_id())",
)
PASSWORD = "…"  # as the pages write it
SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"
STARTED = 300.0


def blocks(page: str, *languages: str) -> list[Block]:
    return [block for block in all_blocks(*languages) if block.page == f"docs/{page}"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Callable[..., Shell]]:
    """Makes the shell of a page; its services end with the test."""
    made: list[Shell] = []

    def make(replaced: dict[str, str], port: int, **variables: str) -> Shell:
        folder = tmp_path / "session"
        folder.mkdir()
        made.append(Shell(folder, replaced, port, variables))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def served(
    source_db: SourceDb, upload_role: str, deploy: Deploy, serve: Callable[..., Service], shell: Callable[..., Shell]
) -> tuple[Service, Shell]:
    """A service that takes uploads, and a shell beside its config, in which the replicator can be asked for work."""
    source_db.execute(TABLES)
    for table in ("lists", "todos"):
        source_db.execute(f"alter table {table} enable row level security")
        source_db.execute(f"create policy own on {table} using (true) with check (true)")
    deployment: Deployment = deploy(RULES).start()
    rules = {name: TableRule("public", name) for name in ("lists", "todos")}
    prepare_uploads(UploadSettings(deployment.settings, upload_role, rules))
    service = serve(deployment, upload={"role": upload_role, "tables": {"lists": {}, "todos": {}}})
    admin = f"postgresql://postgres:x@127.0.0.1:{source_db.server.port}/{source_db.name}"
    replaced = {
        "localhost:8080": f"127.0.0.1:{service.port}",
        "https://sync.example.com": service.endpoint,
        "postgresql://postgres:…@db.example.com/app": admin,
    }
    made = shell(replaced, service.port)
    config = json.loads(service.config.read_text())
    (made.folder / "headwater.yaml").write_text(json.dumps(config))
    (made.folder / "sync.yaml").write_text(RULES)
    return service, made


def test_commands_page(served: tuple[Service, Shell], tmp_path: Path) -> None:
    _, shell = served
    config = json.loads((shell.folder / "headwater.yaml").read_text())
    config["storage"]["path"] = str(tmp_path / "other")
    (shell.folder / "other.yaml").write_text(json.dumps(config))
    shell.replaced = {**shell.replaced, "/backup/monday": str(tmp_path / "monday")}
    (shell.folder / "rules").mkdir()
    (shell.folder / "rules" / "one.yaml").write_text(RULES)
    shell.run("headwater source schema -c headwater.yaml -o schema.json")
    for page in ("rule-tools.md", "backup.md", "service-config.md"):
        for block in blocks(page, "sh"):
            shell.run(block.code)
    assert (tmp_path / "other").is_dir()


def test_uploads_page(served: tuple[Service, Shell], source_db: SourceDb) -> None:
    _, shell = served
    for block in blocks("uploads.md", "sh"):
        shell.run(block.code)
    source_db.execute(
        "create schema app; create table items (id text primary key, stock int); drop policy own on todos"
    )
    for block in blocks("uploads.md", "sql"):
        shell.sql(block.code, source_db.dsn)
    assert source_db.fetch("select policyname::text from pg_policies where tablename = 'todos'") == [("own",)]


@pytest.mark.parametrize("page", ["connect-python.md", "python-client.md"])
def test_python_page(served: tuple[Service, Shell], source_db: SourceDb, page: str, tmp_path: Path) -> None:
    service, shell = served
    code = "\n".join(block.code for block in blocks(page, "python"))
    code = code.replace("    print(rows)  # now, and whenever it changes", "    break")  # it would go on for ever
    token = service.token("user-1")
    prelude = f"""
from headwater_client import Credentials
def token_from_my_login(): return {token!r}
new_token = token_from_my_login
"""
    ending = "" if page == "connect-python.md" else "\nMyConnector().fetch_credentials()\n"
    program = tmp_path / "app.py"
    program.write_text(prelude + shell.real(code) + ending)
    printed = output_of(sys.executable, program, cwd=tmp_path)
    assert "bread" in printed
    assert "milk" in printed


def test_rule_tests_page(tmp_path: Path) -> None:
    (tmp_path / "sync_rules.yaml").write_text("""
config: {edition: 3}
streams:
  lists:
    auto_subscribe: true
    queries:
      - SELECT * FROM lists WHERE owner_id = auth.user_id()
      - SELECT * FROM lists WHERE id IN (SELECT list_id FROM list_members WHERE user_id = auth.user_id())
  members: {auto_subscribe: true, query: SELECT * FROM list_members WHERE user_id = auth.user_id()}
  todos:
    query: >
      SELECT * FROM todos WHERE list_id = subscription.parameter('list_id')
      AND list_id IN (SELECT id FROM lists WHERE owner_id = auth.user_id())
""")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    story, calls = (block.code for block in blocks("testing-rules.md", "python"))
    rows = """
    sync_rules.insert("lists", {"id": 1, "owner_id": "ann"}, {"id": 2, "owner_id": "ann"})
    sync_rules.insert("todos", {"id": 11, "list_id": 1}, {"id": 12, "list_id": 2}, {"id": 13, "list_id": 3})
"""
    inside = "".join(f"    {line}\n" for line in calls.splitlines())
    (tmp_path / "test_page.py").write_text(f"{story}\n\ndef test_calls(sync_rules):{rows}{inside}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    assert "2 passed" in output_of(*command, cwd=tmp_path)


def test_postgres_settings_page(postgres_with: Callable[..., EmbeddedPostgres], shell: Callable[..., Shell]) -> None:
    server = postgres_with()
    page = shell({}, 0)
    page.sql(TABLES, server.dsn())
    for name in ("operating.md", "security.md"):
        for block in blocks(name, "sql"):
            page.sql(block.code, server.dsn())
    with psycopg.connect(server.dsn()) as conn:
        tables = conn.execute("select tablename::text from pg_publication_tables order by 1").fetchall()
    assert tables == [("lists",), ("todos",)]


def replaced_of(server: EmbeddedPostgres, port: int) -> dict[str, str]:
    """What stands for the pages' database and service."""
    at = f"127.0.0.1:{server.port}/postgres"
    return {
        "postgresql://postgres:…@db.example.com/app": f"postgresql://postgres:x@{at}",
        "postgresql://headwater@db.example.com:5432/app": f"postgresql://headwater@{at}",
        "verify-full": "disable",
        "localhost:8080": f"127.0.0.1:{port}",
        "port: 8080": f"port: {port}",
    }


def test_quick_start_page(postgres_with: Callable[..., EmbeddedPostgres], shell: Callable[..., Shell]) -> None:
    server, port = postgres_with(), free_port()
    page = shell(replaced_of(server, port), port, PS_SOURCE_PASSWORD=PASSWORD, PS_JWT_SECRET=SECRET)
    page.sql(TABLES, server.dsn())
    written, printed = {"streams": "sync.yaml", "replication": "headwater.yaml"}, ""
    for block in blocks("quick-start.md", "sql", "yaml", "sh", "python"):
        match block.language:
            case "sql":
                page.sql(block.code, server.dsn())
            case "yaml":
                for key in [key for key in written if f"{key}:" in block.code]:
                    (page.folder / written[key]).write_text(page.real(block.code))
            case "sh":
                printed += page.run(block.code)
                page.wait_ready(STARTED)
                wait_until(lambda: "lists" in page.run("headwater explain user user-1"), "the rows", STARTED)
            case _:
                (page.folder / "signed.py").write_text(f"{block.code}\nprint(token)\n")
                token = page.run(f"{sys.executable} signed.py").strip()
                answer = page.run(
                    f"curl --fail -H 'Authorization: Token {token}' localhost:8080/write-checkpoint2.json"
                )
                assert "write_checkpoint" in answer
    assert "write_checkpoint" in printed
    assert "lists" in printed
    assert "home" in printed, "the list that the device has"
    assert "active" in printed, "the versions of the rules"


EXPLAIN = "headwater explain user user-1 --config powersync.yaml"
MOVED = f"""
replication:
  connections:
    - {{type: postgresql, uri: !env PS_SOURCE_URI, sslmode: disable, publications: [powersync]}}
storage: {{type: sqlite, path: store}}
sync_config: {{path: sync.yaml}}
client_auth: {{audience: [tests], jwks: {{keys: [{{kty: oct, alg: HS256, k: {SECRET}}}]}}}}
port: !env PS_PORT::number
"""


def test_migrating_page(postgres_with: Callable[..., EmbeddedPostgres], shell: Callable[..., Shell]) -> None:
    server, port = postgres_with(), free_port()
    uri = f"postgresql://postgres:x@127.0.0.1:{server.port}/postgres"
    page = shell({}, port, PS_SOURCE_URI=uri, PS_PORT=str(port))
    page.sql(TABLES + "create publication powersync for all tables;", server.dsn())
    page.sql("select pg_create_logical_replication_slot('powersync_1_ab12', 'pgoutput');", server.dsn())
    (page.folder / "powersync.yaml").write_text(MOVED)
    (page.folder / "sync.yaml").write_text(RULES)
    printed = ""
    for block in blocks("migrating.md", "sh", "sql"):
        if block.language == "sql":
            page.sql(block.code, server.dsn())
            continue
        printed = page.run(block.code)
        if "serve" in block.code:
            page.wait_ready(STARTED)
            wait_until(lambda: "lists" in page.run(EXPLAIN), "the rows", STARTED)
    assert "lists" in printed
    with psycopg.connect(server.dsn()) as conn:
        slots = conn.execute("select slot_name::text from pg_replication_slots").fetchall()
    assert [name.startswith("headwater_") for (name,) in slots] == [True]
