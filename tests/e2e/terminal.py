"""The to-do app of the Python client's examples, run without a terminal, in a thread of its own."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import httpx

from headwater_client import Database, Refusal, UploadConnector

_APP = Path(__file__).parents[2] / "clients" / "python" / "examples" / "todo.py"


def load_todo_app() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("todo_example", _APP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Terminal:
    """The app as one user of the demo, while the context lasts."""

    def __init__(self, demo: str, file: Path) -> None:
        example = load_todo_app()
        self.refused: list[Refusal] = []
        user = httpx.get(f"{demo}users").json()[0]["id"]
        self.database = Database(file, example.SCHEMA)
        connector: UploadConnector = example.demo_connector(demo, user, self.refused.append)
        self._app = example.TodoApp(self.database, connector)
        self._loop = asyncio.new_event_loop()
        self._done, self._ready = asyncio.Event(), threading.Event()
        self._pilot: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(90), "the app starts"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(90)
        self.database.close()

    def presses(self, *keys: str) -> None:
        """Press keys, as a user would."""
        self._do(lambda: self._pilot.press(*keys))

    def adds(self, title: str) -> None:
        """Type a to-do and press Enter."""
        self._do(lambda: self._pilot.click("#new"))
        self.presses(*("space" if letter == " " else letter for letter in title), "enter")

    def shows(self, title: str) -> bool:
        """Whether the table on the screen has this to-do."""

        async def look() -> bool:
            return title in self._titles()

        return bool(self._do(look))

    def chooses(self, title: str) -> None:
        """Put the cursor on a to-do."""

        async def move() -> None:
            self._app.query_one("#todos").move_cursor(row=self._titles().index(title))

        self._do(move)

    def _titles(self) -> list[str]:
        table = self._app.query_one("#todos")
        return [str(table.get_row_at(row)[1]) for row in range(table.row_count)]

    def id_of(self, title: str) -> str:
        (row,) = self.database.rows("select id from todos where title = ?", [title])
        return str(row["id"])

    def titles_beside(self, title: str) -> list[str]:
        """What the list of a to-do has, in the order of the letters."""
        sql = "select title from todos where list_id = (select list_id from todos where title = ?) order by title"
        return [row["title"] for row in self.database.rows(sql, [title])]

    def _do(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(30)

    def _run(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        async with self._app.run_test(size=(100, 60)) as self._pilot:
            self._ready.set()
            await self._done.wait()
