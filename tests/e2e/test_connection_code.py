"""What `headwater init` prints for an app is code with which a device syncs and uploads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headwater.cli.init.run import connection_code
from headwater.embedded.node import find_node
from headwater.source.catalog.schema import read_outline, read_schema
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.client_schema import client_schema, schema_code
from headwater_rules.propose.propose import propose
from headwater_rules.schema import Language
from tests.support.command import output_of
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.node_process import FOLDER, npm_ci

PYTHON = """
import json, time
database.wait_for_first_sync(timeout=60)
rows = [{"text": row["text"]} for row in database["notes"].rows]
database.execute("update notes set text = 'changed'")
while not sent:
    time.sleep(0.02)
print(json.dumps({"rows": rows, "sent": sent}))
database.close()
"""


STUBS = """
export const sent: unknown[] = [];
async function fetchTokenFromYourBackend(): Promise<string> { return TOKEN; }
async function sendToYourBackend(crud: { opData?: unknown }[]) { sent.push(...crud.map((each) => each.opData)); }
"""
APP = """
import { db, sent } from './connect';
await db.waitForFirstSync(AbortSignal.timeout(60_000));
const rows = await db.getAll('select text from notes');
await db.execute("update notes set text = 'changed'");
while (!sent.length) await new Promise((resolve) => setTimeout(resolve, 20));
console.log(JSON.stringify({ rows, sent }));
await db.close();
"""
MODULE = '{"type": "module"}'
IN_NODE = "{ dbFilename: 'app.db', implementation: { type: 'node:sqlite' } }"
OPTIONS = {
    "target": "ES2022", "lib": ["ES2023", "DOM"], "module": "ESNext", "moduleResolution": "Bundler", "strict": True,
    "skipLibCheck": True, "noEmit": True, "types": [],
}  # fmt: skip
WEB = Path(__file__).parents[2] / "clients" / "web"


@dataclass(frozen=True, slots=True)
class App:
    """Where devices connect to, and what `headwater init` would print for it."""

    service: Service
    schema: str
    connect: str


@pytest.fixture
def printed(deploy: Deploy, source_db: SourceDb, serve: Callable[..., Service]) -> Callable[[Language], App]:
    source_db.execute("create table notes (id text primary key, user_id text, text text)")
    source_db.execute("insert into notes values ('1', 'ann', 'mine'), ('2', 'bob', 'his')")
    deployed = deploy("config: {edition: 3}\nstreams: {}")
    deployed.yaml = propose(read_outline(deployed.settings)).text
    service = serve(deployed.start())

    def code(language: Language) -> App:
        tables = client_schema(compile_config(deployed.yaml).plan, read_schema(deployed.settings))
        connect = connection_code(language).replace("http://localhost:8080", service.endpoint)
        return App(service, schema_code(tables, language), connect)

    return code


def synced(command: list[str], folder: Path) -> None:
    assert json.loads(output_of(*command, cwd=folder)) == {"rows": [{"text": "mine"}], "sent": [{"text": "changed"}]}


@pytest.mark.long
@pytest.mark.e2e
def test_python_app_connects(printed: Callable[[Language], App], tmp_path: Path) -> None:
    app = printed(Language.PYTHON)
    stubs = f"sent = []\ndef fetch_token_from_your_backend(): return {json.dumps(app.service.token('ann'))}\n"
    stubs += "def send_to_your_backend(crud): sent.extend(each.data for each in crud)\n"
    (tmp_path / "app.py").write_text(app.schema + stubs + app.connect + PYTHON)
    synced([sys.executable, "app.py"], tmp_path)


@pytest.mark.long
@pytest.mark.e2e
def test_typescript_app_connects(printed: Callable[[Language], App], tmp_path: Path) -> None:
    npm_ci(FOLDER)
    npm_ci(WEB)
    app = printed(Language.TS)
    assert f"// Node: database: {IN_NODE}" in app.connect
    stubs = STUBS.replace("TOKEN", json.dumps(app.service.token("ann")))
    node = str(find_node().node)
    for package, packages in (("web", WEB), ("node", FOLDER)):
        folder = tmp_path / package
        folder.mkdir()
        (folder / "node_modules").symlink_to(packages / "node_modules")
        connect = app.connect
        if package == "node":
            connect = connect.replace("@powersync/web", "@powersync/node")
            connect = connect.replace("database: { dbFilename: 'app.db' }", f"database: {IN_NODE}")
        files = {"AppSchema.ts": app.schema, "connect.ts": stubs + connect, "app.ts": APP, "package.json": MODULE}
        for name, text in files.items():
            (folder / name).write_text(text)
        (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "include": ["*.ts"]}))
        output_of(node, WEB / "node_modules" / "typescript" / "bin" / "tsc", "--project", folder)
    for name, other in (("connect.ts", "./AppSchema"), ("app.ts", "./connect")):  # Node wants the ending
        path = tmp_path / "node" / name
        path.write_text(path.read_text().replace(f"'{other}'", f"'{other}.ts'"))
    synced([node, "app.ts"], tmp_path / "node")
