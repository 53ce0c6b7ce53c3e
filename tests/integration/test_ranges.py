"""Ranges of looked-up rows and absence that differ by user, on the service: devices have what Postgres answers."""

from __future__ import annotations

from random import Random

from tests.support.fix_headwater import STORES, Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams

TABLES = """
create table projects (id text primary key, level double precision, starts date, ends date);
create table members (id text primary key, project text, account text, joined date);
create table shifts (id text primary key, project text, account text);
create table hidden (id text primary key, shift text, account text);
create table muted (id text primary key, project text, account text);
create table banned (id text primary key, account text, reason text);
insert into projects select i, i % 5, date '2026-01-01' + i, date '2026-01-10' + i from generate_series(1, 20) i;
insert into members select i, i % 20 + 1, 'ab'::char(2), date '2026-01-03' + i % 15 from generate_series(1, 40) i;
update members set account = case when id::int % 3 = 0 then 'kim' else 'lee' end;
insert into shifts select i, i % 22, case when i % 2 = 0 then 'kim' else 'lee' end from generate_series(1, 100) i;
insert into hidden select i, i * 3, 'kim' from generate_series(1, 8) i;
insert into muted values ('1', '3', 'kim'), ('2', '4', 'lee');
"""
JOINED = 'shifts AS "{}" JOIN projects p ON p.id = "{}".project JOIN members m ON m.project = p.id'
QUERIES = {
    "open": 'SELECT "open".id FROM ' + JOINED.format("open", "open") + """
        WHERE m.account = auth.user_id() AND auth.parameter('day') BETWEEN p.starts AND p.ends AND p.ends > m.joined""",
    "level": """SELECT id FROM shifts AS "level" WHERE project IN
        (SELECT id FROM projects WHERE level < auth.parameter('level') OR level IS NULL)""",
    "shown": """SELECT id FROM shifts AS "shown" WHERE account = auth.user_id()
        AND id NOT IN (SELECT shift FROM hidden WHERE account = auth.user_id())""",
    "heard": """SELECT id FROM shifts AS "heard" WHERE project IN
        (SELECT project FROM members WHERE account = auth.user_id()) AND NOT EXISTS
        (SELECT 1 FROM muted WHERE muted.project = heard.project AND muted.account = auth.user_id())""",
    "allowed": """SELECT id FROM shifts AS "allowed" WHERE account = auth.user_id()
        AND NOT EXISTS (SELECT 1 FROM banned WHERE account = auth.user_id() AND reason = 'hard')""",
}  # fmt: skip


def expected(source: SourceDb, user: str, level: float, day: str) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for name, query in QUERIES.items():
        written = query.replace("auth.user_id()", f"'{user}'").replace("auth.parameter('day')", f"date '{day}'")
        rows = source.connection.execute(written.replace("auth.parameter('level')", str(level)).encode()).fetchall()
        found |= {(name, str(row[0])) for row in rows}
    return found


def compare(deployment: Deployment, source: SourceDb, random: Random) -> None:
    deployment.caught_up()
    for user in ("kim", "lee"):
        level, day = random.choice([0, 1.5, 3, 9]), f"2026-01-{random.randint(1, 31):02}"
        assert deployment.rows(user, level=level, day=day).keys() == expected(source, user, level, day)


def change(random: Random) -> str:
    some = f"id = '{random.randint(1, 25)}'"
    day = random.choice(["null", f"date '2026-01-{random.randint(1, 31):02}'"])
    level, user = random.choice(["null", "0", "1.5", "3"]), random.choice(["null", "'kim'", "'lee'", "'lou'"])
    few, number, reason = random.randint(1, 3), random.randint(1, 25), random.choice(["null", "'hard'"])
    muted = "project = excluded.project, account = excluded.account"
    banned = "account = excluded.account, reason = excluded.reason"
    shift = random.choice(["null", f"'{random.randint(1, 100)}'"])
    return random.choice(
        [
            f"update projects set starts = {day} where {some}",
            f"update projects set ends = {day}, level = {level} where {some}",
            f"update members set joined = {day}, account = {user} where {some}",
            f"delete from projects where {some}",
            f"insert into projects values ('{random.randint(1, 25)}', {level}, {day}) on conflict do nothing",
            f"update shifts set project = '{random.randint(1, 25)}' where {some}",
            f"update shifts set account = {user} where id = '{random.randint(1, 100)}'",
            f"insert into hidden values ('{random.randint(1, 12)}', {shift}, {user}) on conflict (id) do nothing",
            f"update hidden set account = {user}, shift = {shift} where {some}",
            f"delete from hidden where {some}",
            f"insert into muted values ('{few}', '{number}', {user}) on conflict (id) do update set {muted}",
            f"delete from muted where id = '{few}'",
            f"insert into banned values ('{few}', {user}, {reason}) on conflict (id) do update set {banned}",
            f"delete from banned where id = '{few}'",
        ]
    )


@STORES
def test_devices_have_what_postgres_answers(deploy: Deploy, source_db: SourceDb, on_postgres: bool) -> None:
    random = Random(f"ranges on {on_postgres}")
    source_db.execute(TABLES)
    deployment = deploy(auto_streams(**QUERIES), on_postgres=on_postgres).start()
    compare(deployment, source_db, random)
    for number in range(30):
        for _ in range(random.randint(1, 5)):
            source_db.execute(change(random))
        if number % 10 == 5:
            deployment.stop()
            source_db.execute(change(random))
            deployment.start()
        compare(deployment, source_db, random)
