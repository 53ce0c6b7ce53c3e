"""Rows with the name of their parent: a parent with very many children changes, how long until all have it, what that
costs, and how long other commits take meanwhile; and what rules without joins cost beside the same with one."""

from __future__ import annotations

import threading
import time
from itertools import islice

from tests.bench import report
from tests.bench.latency import commits
from tests.bench.service import Meter, bench_service
from tests.support.store_file import store_file
from tests.support.waiting import wait_until

_STREAMS = """
config: {edition: 3}
streams:
  plain:
    auto_subscribe: true
    query: SELECT * FROM other WHERE owner = auth.user_id()
  named:
    query: >
      SELECT "named".id, "named".title, p.name AS parent FROM items AS "named" JOIN parents p ON p.id = "named".parent
      WHERE "named".owner = auth.user_id()
"""
_TABLES = """
create table parents (id bigint primary key, name text);
create table items (id bigserial primary key, owner text, title text, parent bigint);
create table other (id bigserial primary key, owner text, title text);
insert into parents values (1, 'first'), (2, 'second');
"""
_INSERT = "insert into other (owner, title) values ('me', %s)"


def run(children: int) -> None:
    """With one parent of so many children."""
    report.heading(f"joins: a parent with {children:,} children changes")
    with bench_service() as service:
        service.serve_ready(_STREAMS, _TABLES, "create publication headwater for table parents, items, other")
        service.execute(
            "insert into items (owner, title, parent) select 'u' || i % 10, 'title ' || md5(i::text), 1"
            f" from generate_series(1, {children}) i"
        )

        def named(name: str) -> int:
            with store_file(service.address.directory) as db:  # type: ignore[union-attr]
                ((count,),) = db.execute(
                    "select count(*) from ops where instr(body, ?)", (f'\\"parent\\":\\"{name}\\"',)
                ).fetchall()
            return int(str(count))

        wait_until(lambda: named("first") >= children, "all children to have the parent's name", 600)
        stream = service.stream("me")
        alone = list(islice(commits(service, stream, _INSERT), 200))
        late: list[float] = []
        started = time.time()

        def watch() -> None:
            wait_until(lambda: named("changed") >= children, "all children to have the new name", 600)
            late.append(time.time() - started)

        service.execute("update parents set name = 'changed' where id = 1")
        watching = threading.Thread(target=watch)
        with Meter(service.pid).measure() as used:
            watching.start()
            meanwhile = []
            for taken in commits(service, stream, _INSERT):
                meanwhile.append(taken)
                if not watching.is_alive():
                    break
        stream.close()
        report.percentiles(alone, "alone", alone, "commit to line, alone: ")
        report.percentiles(meanwhile, "alone", alone, "commit to line, while children change: ")
        report.line("all children have the new name after", late[0], "s")
        report.line("CPU of the service per million children", used.cpu * 1e6 / children, "s")
