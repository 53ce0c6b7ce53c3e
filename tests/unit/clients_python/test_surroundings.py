"""A device in its surroundings: folders, links, processes that fork, and loops with few threads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater_client import Database
from headwater_client.database import watch
from headwater_client.errors import FileError

TODOS = {"todos": {"title": "text"}}


def test_change_of_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Database("device.db", TODOS) as database:
        database["todos"].insert({"id": "1"})
        monkeypatch.chdir("elsewhere")
        counts: list[int] = []
        thread = threading.Thread(target=lambda: counts.append(database["todos"].count))
        thread.start()
        thread.join()
    assert counts == [1]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_symlink(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.db").symlink_to(tmp_path / "device.db")
    with Database(tmp_path / "device.db", TODOS) as one, Database(tmp_path / "elsewhere" / "link.db") as same:
        assert same.path == one.path


def test_memory() -> None:
    with pytest.raises(FileError, match="a device needs a file"):
        Database(":memory:", TODOS)


def test_fork(tmp_path: Path) -> None:
    """As a program that becomes a daemon. SQLite would write to a journal that is gone once its parent has ended."""
    program = f"""
import os, sys
from headwater_client import Database
from headwater_client.errors import FileError
database = Database({str(tmp_path / "device.db")!r}, {{"todos": {{"title": "text"}}}})
closed, tell = os.pipe()
child = os.fork()
if child:
    database.close()
    os.write(tell, b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.read(closed, 1)
try:
    database["todos"].insert({{"id": "lost"}})
except FileError:
    with Database(database.path) as again:
        again["todos"].insert({{"id": "kept"}})
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=150)
    with Database(tmp_path / "device.db") as database:
        assert [row["id"] for row in database["todos"].rows] == ["kept"]


def test_watch_async_takes_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_POLL", 60.0)
    database = Database(tmp_path / "device.db", TODOS)

    async def follow() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        results = database.watch_async("select count(*) as n from todos")
        assert await anext(results) == [{"n": 0}]
        following = asyncio.ensure_future(anext(results))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(asyncio.to_thread(database["todos"].insert, {"id": "1"}), 20)
        assert await asyncio.wait_for(following, 20) == [{"n": 1}]
        ended = asyncio.ensure_future(anext(results, None))
        await asyncio.sleep(0.05)
        database.close()
        assert await asyncio.wait_for(ended, 20) is None

    asyncio.run(follow())
