"""The stock SDK with two sources, of which one is away: it syncs, uploads to the other, and its write is confirmed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.oplog.lsn import Lsn
from headwater.replication.meters import Flow
from headwater.replication.status import ReplicationState, ReplicatorHealth, Trouble, to_json
from headwater.source.upload.prepare import prepare_uploads
from tests.support.fix_api import Endpoint, make_token
from tests.support.fix_devices import DeviceFactory
from tests.support.fix_postgres import SourceDb
from tests.support.memory_store import MemoryStore
from tests.support.read_uploads import read_uploads
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

DOCS = Path(__file__).parents[2] / "docs" / "uploads.md"
RULES = """
config: {edition: 3}
streams:
  first: {auto_subscribe: true, query: SELECT * FROM todos WHERE owner = auth.user_id()}
"""
TODOS = """
create table todos (id text primary key, owner text, text text);
alter table todos enable row level security;
create policy mine on todos using (true);
"""


def test_write_is_confirmed_while_another_source_is_away(
    source_db: SourceDb,
    crm_db: SourceDb,
    upload_role: str,
    memory_store: MemoryStore,
    start_endpoint: Callable[..., Endpoint],
    device_factory: DeviceFactory,
    tmp_path: Path,
) -> None:
    crm_db.execute(TODOS)
    given = {"role": upload_role, "tables": {"todos": {"table": "crm.todos"}}}
    upload, errors = read_uploads(given, (source_db.settings(), crm_db.settings(tag="crm")))
    assert upload is not None, errors
    (own,) = upload.by_source().values()
    prepare_uploads(own)
    long_ago, trouble = time.time() - 600, Trouble("HW_2001", "away", "", "", time.time(), 1)
    retrying = ReplicatorHealth(ReplicationState.RETRYING, long_ago, time.time(), replace(trouble), flow=Flow())
    memory_store.told_by = {"default": to_json(replace(retrying, flow=Flow(caught_up_at=long_ago)))}
    memory_store.others = {"crm": Lsn(10)}
    memory_store.replace_config(RULES)
    endpoint = start_endpoint(memory_store, upload=upload, sources=("default", "crm"))
    endpoint.head.lsns, endpoint.head.down = {"default": Lsn(10), "crm": Lsn(20)}, {"default"}

    bucket = endpoint.bucket("first", "ann")
    memory_store.put(bucket, "1", json.dumps({"owner": "ann", "text": "old"}))
    memory_store.commit()
    schema = {"todos": {"owner": "text", "text": "text"}}
    (code,) = re.findall(r"```js\n(export class Connector.+?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    connector = tmp_path / "connector.mjs"
    connector.write_text(code, encoding="utf-8")
    address = f"{str(endpoint.http.base_url).rstrip('/')}/sources/crm"
    device = device_factory(address, make_token("ann"), schema, connector=connector, sdk="node")
    device.connect()
    device.wait_synced()  # though the first line has an error of the stream
    device.execute("INSERT INTO todos (id, owner, text) VALUES ('2', 'ann', 'new')")
    wait_until(lambda: crm_db.fetch("select id from todos") == [("2",)], "the write arrives")
    wait_until(lambda: memory_store.write_checkpoints(0) != [], "its write checkpoint is made")
    memory_store.put(bucket, "2", json.dumps({"owner": "ann", "text": "from the source"}))
    memory_store.others["crm"] = Lsn(20)
    memory_store.commit()
    device.wait_confirmed()
    device.wait_for("SELECT text FROM todos ORDER BY id", [{"text": "old"}, {"text": "from the source"}])
