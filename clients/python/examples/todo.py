"""To-do lists in the terminal, on the same data as the web demo: `python todo.py http://127.0.0.1:8080/demo/`.

Needs `pip install 'headwater-client[textual]'`. Works on offline: what is written then is sent later.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.widgets import DataTable, Footer, Input, Static

from headwater_client import ConnectOptions, Database, Refusal, SyncStatus, Table, UploadConnector

SCHEMA = {
    "lists": Table({"owner_id": "text", "name": "text", "created_at": "text"}),
    "todos": Table(
        {
            "list_id": "text",
            "title": "text",
            "notes": "text",
            "done": "integer",
            "created_at": "text",
            "completed_at": "text",
        },
        indexes={"by_list": ["list_id"]},
    ),
    "list_members": Table({"list_id": "text", "user_id": "text", "role": "text"}),
}
TODOS = """
select todos.id, todos.title, todos.done, lists.name as list from todos join lists on lists.id = todos.list_id
order by lists.name, coalesce(todos.done, 0), todos.created_at desc, todos.id
"""


def demo_connector(demo: str, user: str, refused: Callable[[Refusal], object] | None = None) -> UploadConnector:
    """Signs in at the web demo as one of its users. `refused` is called with writes that can never be applied."""

    def ask() -> dict[str, str]:
        answer: dict[str, str] = httpx.get(f"{demo}token", params={"user": user}).raise_for_status().json()
        return answer

    return UploadConnector(ask()["endpoint"], lambda: ask()["token"], refused)


class TodoApp(App[None]):
    """The to-dos of all lists of a user. A new one goes to the list of the one under the cursor."""

    CSS = "DataTable { height: 1fr; } #state { height: 1; }"
    BINDINGS = [
        Binding("ctrl+t", "toggle_done", "done"),
        Binding("ctrl+d", "delete", "delete"),
        Binding("ctrl+o", "toggle_online", "on/offline"),
    ]

    def __init__(self, database: Database, connector: UploadConnector) -> None:
        super().__init__()
        self.database, self.connector = database, connector
        self.online = False

    def compose(self) -> ComposeResult:
        yield Input(placeholder="what is to be done, then Enter", id="new")
        yield DataTable(cursor_type="row", id="todos")
        yield Static("", id="state")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(DataTable).add_columns("", "to do", "list")
        self.database.on_status(lambda status: self.call_later(self.show_status, status))
        self.follow()
        self.action_toggle_online()

    @work
    async def follow(self) -> None:
        """Show the to-dos, again whenever they change."""
        async for rows in self.database.watch_async(TODOS):
            self.show(rows)

    def show(self, rows: list[dict[str, Any]]) -> None:
        table = self.query_one(DataTable)
        at = table.cursor_row
        table.clear()
        for row in rows:
            table.add_row("x" if row["done"] else " ", row["title"], row["list"], key=row["id"])
        table.move_cursor(row=min(at, max(0, len(rows) - 1)))
        self.show_status(self.database.status)  # what was written offline waits now, and changes no status

    def show_status(self, status: SyncStatus) -> None:
        word = "online" if status.connected else ("connecting" if self.online else "offline")
        waiting = self.database.uploads_waiting
        done = [row["done"] for row in self.database.rows("select done from todos")]
        problem = status.download_error or status.upload_error
        text = f"{done.count(1)} of {len(done)} done, {word}, {waiting} waiting" + (f", {problem}" if problem else "")
        self.query_one("#state", Static).update(text.replace("[", r"\["))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        lists = self.database.rows(
            "select list_id as id from todos where id = ? union all"
            " select * from (select id from lists order by name, id limit 1)",
            [self.chosen()],
        )
        if event.value and lists:
            self.database["todos"].insert(
                {
                    "id": str(uuid.uuid4()),
                    "list_id": lists[0]["id"],
                    "title": event.value,
                    "done": 0,
                    "created_at": datetime.now(timezone.utc).isoformat(),
                }
            )
            event.input.clear()

    def chosen(self) -> str | None:
        """The id of the to-do under the cursor."""
        table = self.query_one(DataTable)
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    def action_toggle_done(self) -> None:
        row_id = self.chosen()
        if row_id is not None:
            done = not self.database["todos"].get(row_id)["done"]
            at = datetime.now(timezone.utc).isoformat() if done else None
            self.database["todos"].update(row_id, {"done": int(done), "completed_at": at})

    def action_delete(self) -> None:
        row_id = self.chosen()
        if row_id is not None:
            self.database["todos"].delete(row_id)

    @work(thread=True, exclusive=True, group="connection")
    def action_toggle_online(self) -> None:
        self.online = not self.online
        if self.online:
            self.database.connect(self.connector, ConnectOptions(retry_delay=1))
        else:
            self.database.disconnect()
        self.call_later(self.show_status, self.database.status)


def main() -> None:
    parser = argparse.ArgumentParser(description="To-do lists in the terminal")
    parser.add_argument("demo", help="address of the web demo, with its last slash")
    parser.add_argument("--user", help="id of a user of the demo (default: the first)")
    parser.add_argument("--file", type=Path, default=Path("todo.db"))
    arguments = parser.parse_args()
    user = arguments.user or httpx.get(f"{arguments.demo}users").raise_for_status().json()[0]["id"]
    with Database(arguments.file, SCHEMA) as database:
        TodoApp(database, demo_connector(arguments.demo, user)).run()


if __name__ == "__main__":
    main()
