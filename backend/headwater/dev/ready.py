"""Waits until the demo is ready, and says what to try."""

from __future__ import annotations

import http.client
import shlex
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from headwater.api.http.server import reachable_host
from headwater.dev.demo_files import DemoFiles
from headwater.storage.address import SqliteAddress
from headwater.storage.open import open_backend

_PAUSE = 0.2
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """The address that the demo listens on."""

    host: str
    port: int

    @property
    def origin(self) -> str:
        host = reachable_host(self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def answers(self) -> bool:
        """Whether the demo's page, or its placeholder, is served."""
        try:
            host = reachable_host(self.host)
            with closing(http.client.HTTPConnection(host, self.port, _ANSWER_SECONDS)) as connection:
                connection.request("GET", "/demo/")
                connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        return True


def when_ready(store: Path, address: Address, stop: threading.Event, then: Callable[[], None]) -> None:
    """Call `then` once the page answers and the store has a checkpoint for devices, unless `stop` is set before."""
    with closing(open_backend(SqliteAddress(str(store))).open_reader()) as reader:
        while not stop.is_set():
            if reader.newest() is not None and address.answers():
                then()
                return
            stop.wait(_PAUSE)


def own_tables_text(address: Address, database: str, files: DemoFiles, rules: Path) -> str:
    """The text to print when a database of one's own is shown."""
    page = f"{address.origin}/demo/" + ("" if files.has_app else "   (not built yet: run `make install`)")
    return f"""
Ready.

  your tables     {page}
  database        {database}
  sync config     {rules}

Change a row of theirs, in your app or by SQL, and see it arrive. Devices write nothing here.

Ctrl-C ends everything, and drops the slot and the publication that were made for it.
"""


def database_session(dsn: str, programs: Path) -> str:
    """The command that opens a database session, or only its address where there is no psql. `programs` is the
    directory of Postgres' programs, `dsn` a libpq URI."""
    psql = "psql" if shutil.which("psql") else shutil.which("psql", path=str(programs))
    return f"{shlex.quote(psql)} {shlex.quote(dsn)}" if psql else dsn


def what_to_try(address: Address, database: str, files: DemoFiles, kept: Path | None) -> str:
    """The text to print when ready. `database` is how to open a session of the database."""
    app = f"{address.origin}/demo/" + ("" if files.has_app else "   (not built yet: run `make demo`)")
    end = "Ctrl-C ends everything" + (f"; {kept} stays." if kept else ", and leaves nothing behind.")
    return f"""
Ready.

  demo app        {app}
  sync endpoint   {address.origin}   (tokens: {address.origin}/demo/token?user=ID, ids: {address.origin}/demo/users)
  Postgres        {database}
  sync rules      {files.rules}

Open the demo app beside a database session, and try:

  -- a to-do appears on both sides
  insert into todos (id, list_id, title)
    select gen_random_uuid(), id, 'Look at the sky' from lists where name = 'Weekend together';

  -- Ben loses the list with all that is in it; Ada keeps it
  delete from list_members m using lists l, users u
    where l.id = m.list_id and u.id = m.user_id and l.name = 'Weekend together' and u.name = 'Ben';

  -- and gets it back
  insert into list_members (id, list_id, user_id, role)
    select gen_random_uuid(), l.id, u.id, 'member' from lists l, users u
    where l.name = 'Weekend together' and u.name = 'Ben';

{end}
"""
