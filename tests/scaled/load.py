"""What the source does meanwhile: a beat ten times a second that all devices hear, and writers of lists and todos."""

from __future__ import annotations

import random
import time
from typing import Final

import psycopg

from tests.support.sync_configs import auto_streams
from tests.support.working_thread import WorkingThread

BEAT_SECONDS: Final = 0.1
LISTS: Final = 5
"""Of each user, at the start."""

_KILOBYTE: Final = "repeat(md5(i::text), 30)"
_TABLES: Final = (
    "create table beats (id text primary key)",
    "create table lists (id text primary key, owner text not null, name text not null)",
    "create table todos (id text primary key, list_id text not null, title text not null, done int not null)",
    "create table archive (id text primary key, owner text not null, n int not null, body text not null)",
)

RULES: Final = auto_streams(
    beats="SELECT * FROM beats",
    lists="SELECT * FROM lists WHERE owner = auth.user_id()",
    todos="SELECT * FROM todos WHERE list_id IN (SELECT id FROM lists WHERE owner = auth.user_id())",
    archive="SELECT ARCHIVED FROM archive WHERE owner = auth.user_id()",
)


def rules(archived: str = "*") -> str:
    """The sync config, with these columns of the archive."""
    return RULES.replace("ARCHIVED", archived)


def schema(users: int, rows: int) -> list[str]:
    """The tables: an archive of so many rows, which belong to ten times as many users as have a device, so that a
    device gets a tenth of them; some lists each."""
    lists = users * LISTS - 1
    archive = (
        f"insert into archive select i::text, 'u' || i % {users * 10}, i % 1000, {_KILOBYTE}"
        f" from generate_series(1, {rows}) i"
    )
    return [
        *_TABLES,
        archive,
        f"insert into lists select 'l' || i, 'u' || i % {users}, 'a list' from generate_series(0, {lists}) i",
        f"insert into todos select 't' || i, 'l' || i, 'to do', 0 from generate_series(0, {lists}) i",
        "analyze",
        "create publication headwater for table beats, lists, todos, archive",
    ]


class Beats(WorkingThread):
    """Commits beat after beat. `committed` has when, on the monotonic clock: of beat 1 at 0. The last one comes after
    `end` was called."""

    def __init__(self, dsn: str) -> None:
        super().__init__("beats")
        self._dsn = dsn
        self.committed: list[float] = []

    def work(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(BEAT_SECONDS):
                self._beat(connection)
            self._beat(connection)

    def _beat(self, connection: psycopg.Connection) -> None:
        connection.execute("insert into beats values (%s)", [len(self.committed) + 1])
        self.committed.append(time.monotonic())


class Writer(WorkingThread):
    """Commits transactions of some inserts, updates and deletes, so many seconds apart. `done` counts them."""

    def __init__(self, dsn: str, number: int, users: int, pause: float) -> None:
        super().__init__(f"writer-{number}")
        self._dsn = dsn
        self._chance = random.Random(number)
        self._name = f"w{number}"
        self._users = users
        self._pause = pause
        self._mine: list[str] = []
        self._made = 0
        self.done = 0

    def work(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(self._pause):
                with connection.transaction():
                    for _ in range(self._chance.randint(1, 4)):
                        self._change(connection)
                self.done += 1

    def _change(self, connection: psycopg.Connection) -> None:
        """Of its own todos, so that writers do not lock each other out; and the name of any list."""
        what = self._chance.random()
        if what < 0.5 or not self._mine:
            self._made += 1
            self._mine.append(f"{self._name}-{self._made}")
            connection.execute("insert into todos values (%s, %s, 'more', 0)", [self._mine[-1], self._list()])
        elif what < 0.7:
            todo = self._chance.choice(self._mine)
            connection.execute("update todos set done = 1 - done, title = title || '!' where id = %s", [todo])
        elif what < 0.8:  # to somebody else's device
            connection.execute(
                "update todos set list_id = %s where id = %s", [self._list(), self._chance.choice(self._mine)]
            )
        else:
            todo = self._mine.pop(self._chance.randrange(len(self._mine)))
            connection.execute("delete from todos where id = %s", [todo])

    def _list(self) -> str:
        return f"l{self._chance.randrange(self._users * LISTS)}"
