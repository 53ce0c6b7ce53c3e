"""What `headwater init` prints for an app in Python is code with which a device syncs and uploads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.cli.init.next_steps import connection_code
from headwater.source.catalog.outline import read_outline
from headwater.source.catalog.schema import read_schema
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.client_languages import schema_code
from headwater_rules.describe.client_schema import client_schema
from headwater_rules.describe.languages import Language
from headwater_rules.propose.propose import propose
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service

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


@pytest.mark.long
@pytest.mark.e2e
def test_an_app_connects_by_it(
    deploy: Deploy, source_db: SourceDb, serve: Callable[..., Service], tmp_path: Path
) -> None:
    source_db.execute("create table notes (id text primary key, user_id text, text text)")
    source_db.execute("insert into notes values ('1', 'ann', 'mine'), ('2', 'bob', 'his')")
    deployed = deploy("config: {edition: 3}\nstreams: {}")
    deployed.yaml = propose(read_outline(deployed.settings)).text
    service = serve(deployed.start())
    schema = schema_code(
        client_schema(compile_config(deployed.yaml).plan, read_schema(deployed.settings)), Language.PYTHON
    )
    connect = connection_code(Language.PYTHON).replace("http://localhost:8080", service.endpoint)
    token = json.dumps(service.token("ann"))
    stubs = f"sent = []\ndef fetch_token_from_your_backend(): return {token}\n"
    stubs += "def send_to_your_backend(crud): sent.extend(each.data for each in crud)\n"
    text = schema + stubs + connect + PYTHON
    command = [sys.executable, "app.py"]
    (tmp_path / "app.py").write_text(text)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"rows": [{"text": "mine"}], "sent": [{"text": "changed"}]}
