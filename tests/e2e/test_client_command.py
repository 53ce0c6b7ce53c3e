"""The command `headwater-client` on a real endpoint: a file is synced, asked, watched and checked."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headwater_client.cli import main
from tests.support.fix_api import Endpoint, make_token
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

RULES = """
config: {edition: 3}
streams:
  mine: {auto_subscribe: true, query: SELECT * FROM todos WHERE owner = auth.user_id()}
  chosen: {query: SELECT * FROM topics WHERE topic = subscription.parameter('topic')}
"""


@pytest.fixture
def endpoint(start_endpoint: Callable[..., Endpoint], memory_store: MemoryStore) -> Endpoint:
    memory_store.replace_config(RULES)
    endpoint = start_endpoint(memory_store)
    for number in range(3):
        row = {"title": f"todo {number}", "n": number, "share": number / 2}
        memory_store.put(endpoint.bucket("mine", "u1"), str(number), json.dumps(row))
    memory_store.put(endpoint.bucket("chosen", "birds"), "bird", json.dumps({"title": "wren"}))
    memory_store.commit()
    return endpoint


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "device.db"


def command(*words: object, exit_code: int = 0) -> Result:
    """What came of it. A failure is told, not thrown."""
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == exit_code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def sync(endpoint: Endpoint, file: Path, *words: object) -> Result:
    return command(
        "sync", file, "--endpoint", endpoint.http.base_url, "--token", make_token(), "--once", "--timeout", 30, *words
    )


def test_tables_without_schema(endpoint: Endpoint, file: Path) -> None:
    sync(endpoint, file)
    rows = command(
        "query", file, "select id, title, n, share from todos where n > ? order by id", 0, "--format", "json"
    )
    assert [json.loads(line) for line in rows.stdout.splitlines()] == [
        {"id": "1", "title": "todo 1", "n": 1, "share": 0.5},
        {"id": "2", "title": "todo 2", "n": 2, "share": 1.0},
    ]
    assert command("query", file, "select title from todos", "--format", "csv").stdout.split("\n")[0].strip() == "title"
    status = json.loads(command("status", file, "--json").stdout)
    assert (status["tables"], status["uploads_waiting"], status["operations"]) == ({"todos": 3}, 0, 3)
    assert "todo 2" in command("watch", file, "select * from todos order by id", "--count", 1).stdout
    assert "wrong" not in command("diagnose", file).stdout


def test_impossible_names_are_left_out(endpoint: Endpoint, memory_store: MemoryStore, file: Path) -> None:
    row = {"title": "tea", "Title": "coffee", "Total Price": 3, "ID": 7}
    memory_store.put(endpoint.bucket("mine", "u1"), "3", json.dumps(row))
    memory_store.commit()
    told = " ".join(sync(endpoint, file).stderr.split())
    assert "left out, as no table can have these names: todos.ID, todos.Total Price, todos.title" in told
    rows = command("query", file, "select * from todos where id = '3'", "--format", "json")
    assert json.loads(rows.stdout) == {"id": "3", "Title": "coffee", "n": None, "share": None}


def test_schema_parameters_and_streams(endpoint: Endpoint, file: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"todos": {"title": "text"}}))
    sync(endpoint, file, "--schema", schema, "-s", 'chosen={"topic": "birds"}', "-p", "a=1")
    assert command("query", file, "select title from todos where id = 'bird'", "--format", "json").stdout.strip() == (
        '{"title": "wren"}'
    )


def test_file_damage_is_found(endpoint: Endpoint, file: Path) -> None:
    sync(endpoint, file)
    with sqlite3.connect(file) as connection:
        connection.execute("delete from ps_data__todos where id = '1'")
        connection.execute("update ps_oplog set hash = hash + 1 where row_id = '2'")
    connection.close()
    found = command("diagnose", file, exit_code=1)
    assert "table todos: 1 rows differ" in found.stdout
    assert "checksums: wrong in" in found.stdout


def test_errors_are_one_line(endpoint: Endpoint, file: Path, tmp_path: Path) -> None:
    assert "is not there" in command("status", file, exit_code=1).stderr
    other = tmp_path / "other.db"
    sqlite3.connect(other).close()
    assert "not the file of a device" in command("query", other, "select 1", exit_code=1).stderr
    address = ["--endpoint", endpoint.http.base_url, "--once", "--timeout", 6]
    assert "answered 401" in command("sync", file, *address, "--token", "nonsense", exit_code=1).stderr
    assert "no such table" in command("query", file, "select * from nowhere", exit_code=1).stderr


def test_late_subscription_adds_tables(endpoint: Endpoint, memory_store: MemoryStore, file: Path) -> None:
    sync(endpoint, file)
    memory_store.put(endpoint.bucket("chosen", "birds"), "wren", json.dumps({"name": "wren", "n": 1}), table="topics")
    memory_store.commit()
    told = sync(endpoint, file, "-s", 'chosen={"topic": "birds"}').stderr
    assert "made tables from the rows that came: topics" in " ".join(told.split())
    command("query", file, "insert into todos (id, title) values (uuid(), 'waits')")
    status = json.loads(command("status", file, "--json").stdout)
    assert (status["tables"], status["uploads_waiting"]) == ({"todos": 5, "topics": 1}, 1)
    assert json.loads(command("query", file, "select * from topics", "--format", "json").stdout) == {
        "id": "wren",
        "name": "wren",
        "n": 1,
    }


def test_watched_query_of_other_program(endpoint: Endpoint, file: Path) -> None:
    sync(endpoint, file)
    words = [sys.executable, "-m", "headwater_client", "watch", str(file), "select id, n from todos where n > ?", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == [{"id": "2", "n": 2}]
        command("query", file, "update todos set n = 5 where id = '2'")
        assert json.loads(process.stdout.readline()) == [{"id": "2", "n": 5}]
        process.terminate()
    csv = command("watch", file, "select id, n from todos where n = 5", "--count", 1, "--format", "csv").stdout
    assert csv.splitlines() == ["id,n", "2,5", ""]


@pytest.mark.long
def test_ctrl_c_ends_query(endpoint: Endpoint, file: Path) -> None:
    sync(endpoint, file)
    endless = "with recursive t(n) as (select 1 union all select n + 1 from t) select count(*) from t"
    words = [sys.executable, "-m", "headwater_client", "query", str(file), endless]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: is_locked(file), "the query")
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, "interrupted" in told) == (1, True), told


def is_locked(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return True
        return False
