"""The examples of the Python client do what they say."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.source.upload.prepare import prepare_uploads
from headwater.source.upload.settings import TableRule, UploadSettings
from headwater_client import Database, UploadConnector
from tests.e2e.terminal import load_todo_app
from tests.support.command import output_of
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service, free_port
from tests.support.sync_configs import auto_streams

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "clients" / "python" / "examples"
RULES = auto_streams(mine="SELECT id FROM readings WHERE sensor = auth.user_id()")
READINGS = """
create table readings (id text primary key, sensor text, value float8, taken_at timestamptz);
alter table readings enable row level security;
create policy own on readings using (true) with check (true);
"""


@pytest.mark.long
def test_sensor_sends_offline_measurements(
    source_db: SourceDb, upload_role: str, deploy: Deploy, serve: Callable[..., Service], tmp_path: Path
) -> None:
    source_db.execute(READINGS)
    deployment = deploy(RULES).start()
    prepare_uploads(UploadSettings(deployment.settings, upload_role, {"readings": TableRule("public", "readings")}))
    service = serve(deployment, upload={"role": upload_role, "tables": {"readings": {}}})

    def run(endpoint: str, wait: float) -> str:
        words: list[str | Path] = [
            "--endpoint",
            endpoint,
            "--token",
            service.token("kitchen"),
            "--file",
            tmp_path / "sensor.db",
        ]
        words += ["--count", "3", "--every", "0", "--wait", str(wait)]
        return output_of(sys.executable, EXAMPLES / "sensor.py", *words)

    assert run(f"http://127.0.0.1:{free_port()}", 0) == "3 readings wait for the network\n"
    assert run(service.endpoint, 30) == "0 readings wait for the network\n"
    assert source_db.fetch("select count(*), count(distinct id), min(sensor) from readings") == [(6, 6, "kitchen")]


def test_todo_app_counts_offline(tmp_path: Path) -> None:
    example = load_todo_app()
    with Database(tmp_path / "todo.db", example.SCHEMA) as database:
        database["lists"].insert({"id": "inbox", "name": "Inbox"})
        app = example.TodoApp(database, UploadConnector(f"http://127.0.0.1:{free_port()}", "none"))

        async def play() -> None:
            async with app.run_test() as pilot:
                for title, done in (("milk", 0), ("bread", 1)):
                    database["todos"].insert({"list_id": "inbox", "title": title, "done": done})
                async with asyncio.timeout(60):
                    while not str(app.query_one("#state").render()).startswith("1 of 2 done, connecting, 3 waiting"):
                        await pilot.pause(0.05)

        asyncio.run(play())


def test_notebook_runs(tmp_path: Path) -> None:
    file = tmp_path / "device.db"
    with Database(file, {"todos": {"list_id": "text", "title": "text", "done": "integer"}}) as database:
        database["todos"].insert_all([{"list_id": "inbox", "title": str(number), "done": 0} for number in range(3)])
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    shown = "\nprint(len(todos), per_list.to_dict('records'))\n"
    printed = output_of(sys.executable, "-c", code + shown, env={**os.environ, "DEVICE_FILE": str(file)})
    assert printed == "3 [{'list_id': 'inbox', 'todos': 3, 'done': 0}]\n"
    with Database(file) as database:
        assert database["todos"].count == 4
