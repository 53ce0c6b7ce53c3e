"""Every way in which a rule gives rows to a user, on a stock device: what is withdrawn leaves it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.fix_devices import Device, DeviceFactory
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service

pytestmark = pytest.mark.e2e

RULES = """
config: {edition: 2}
streams:
  joined:
    auto_subscribe: true
    priority: 1
    query: SELECT p.* FROM projects AS "p" JOIN members m ON p.id = m.project_id WHERE m.user_id = auth.user_id()
  alternatives:
    auto_subscribe: true
    query: >
      SELECT * FROM docs
      WHERE owner = auth.user_id() OR public OR id IN (SELECT doc_id FROM shares WHERE user_id = auth.user_id())
  shared_query:
    auto_subscribe: true
    with:
      my_teams: SELECT team_id FROM team_members WHERE user_id = auth.user_id() AND NOT suspended
    queries:
      - SELECT * FROM teams WHERE id IN my_teams
      - SELECT * FROM tasks WHERE team_id IN my_teams
  in_array:
    auto_subscribe: true
    priority: 2
    query: SELECT id, body FROM notes WHERE auth.user_id() IN readers
  chosen:
    query: >
      SELECT comments.* FROM comments, topics
      WHERE comments.topic_id = topics.id AND topics.id = subscription.parameter('topic')
        AND auth.user_id() IN topics.followers
bucket_definitions:
  profile:
    priority: 0
    parameters:
      - SELECT id AS company_id FROM companies WHERE boss = request.user_id()
      - SELECT company_id FROM staff WHERE user_id = request.user_id()
    data:
      - SELECT id, name FROM companies WHERE id = bucket.company_id
      - SELECT id, company_id FROM offices WHERE company_id = bucket.company_id
"""

TABLES = """
create table projects (id text primary key, name text);
create table members (id text primary key, project_id text, user_id text);
create table docs (id text primary key, owner text, public boolean);
create table shares (doc_id text, user_id text, primary key (doc_id, user_id));
create table teams (id text primary key);
create table team_members (team_id text, user_id text, suspended boolean, primary key (team_id, user_id));
create table tasks (id text primary key, team_id text);
create table notes (id text primary key, body text, readers text[]);
create table topics (id text primary key, followers jsonb);
create table comments (id text primary key, topic_id text);
create table companies (id text primary key, name text, boss text);
create table staff (company_id text, user_id text, primary key (company_id, user_id));
create table offices (id text primary key, company_id text);
insert into projects select 'p' || i, 'Project' from generate_series(1, 3) i;
insert into members values ('m1', 'p1', 'a'), ('m2', 'p2', 'a'), ('m3', 'p3', 'b'), ('m4', 'p1', 'b');
insert into docs values ('own', 'a', false), ('open', 'b', true), ('lent', 'b', false), ('other', 'b', false);
insert into shares values ('lent', 'a'), ('other', 'c');
insert into teams select 't' || i from generate_series(1, 3) i;
insert into team_members values ('t1', 'a', false), ('t2', 'a', false), ('t3', 'a', true);
insert into tasks select 'task' || i, 't' || 1 + i % 3 from generate_series(1, 9) i;
insert into notes values ('n1', 'x', '{a,b}'), ('n2', 'x', '{b}'), ('n3', 'x', '{a}'), ('n4', 'x', null);
insert into topics values ('c1', '["a"]'), ('c2', '["a", "b"]'), ('c3', '["b"]');
insert into comments select 'comment' || i, 'c' || 1 + i % 3 from generate_series(1, 9) i;
insert into companies values ('k1', 'One', 'a'), ('k2', 'Two', 'b'), ('k3', 'Three', 'b');
insert into staff values ('k2', 'a'), ('k3', 'b');
insert into offices select 'office' || i, 'k' || 1 + i % 3 from generate_series(1, 6) i;
"""

SEEN = {
    "p": "select id from projects p where exists (select from members where project_id = p.id and user_id = 'a')",
    "docs": "select id from docs d where owner = 'a' or public"
    " or exists (select from shares where doc_id = d.id and user_id = 'a')",
    "teams": "select team_id from team_members where user_id = 'a' and not suspended",
    "tasks": "select id from tasks k where exists"
    " (select from team_members m where m.team_id = k.team_id and user_id = 'a' and not suspended)",
    "notes": "select id from notes where 'a' = any (readers)",
    "comments": "select c.id from comments c join topics t on t.id = topic_id"
    " where t.id in ('c1', 'c2', 'c3') and followers ? 'a'",
    "companies": "select id from companies k where boss = 'a'"
    " or exists (select from staff where company_id = k.id and user_id = 'a')",
    "offices": "select o.id from offices o join companies k on k.id = company_id where boss = 'a'"
    " or exists (select from staff where company_id = k.id and user_id = 'a')",
}
"""What a user may see of each table on the device, as Postgres tells it."""

STEPS = [
    ("delete from members where id = 'm1'", {"p1"}),
    ("update members set user_id = 'c' where id = 'm2'", {"p2"}),
    ("update docs set owner = 'b' where id = 'own'", {"own"}),
    ("update docs set public = false where id = 'open'", {"open"}),
    ("delete from shares where doc_id = 'lent'", {"lent"}),
    ("update team_members set suspended = true where team_id = 't1'", {"t1", "task3", "task6", "task9"}),
    ("delete from team_members where team_id = 't2'", {"t2", "task1", "task4", "task7"}),
    ("update notes set readers = array_remove(readers, 'a') where id = 'n1'", {"n1"}),
    ("update topics set followers = '[]' where id = 'c1'", {"comment3", "comment6", "comment9"}),
    ("update companies set boss = 'b' where id = 'k1'", {"k1", "office3", "office6"}),
    ("truncate staff", {"k2", "office1", "office4"}),
]
"""A right that is withdrawn, and the rows that it alone gave."""


@pytest.fixture
def device(
    source_db: SourceDb,
    deploy: Callable[..., Deployment],
    serve: Callable[[Deployment], Service],
    device_factory: DeviceFactory,
) -> Device:
    source_db.execute(TABLES)
    service = serve(deploy(RULES).start())
    device = device_factory(service.endpoint, service.token("a"), {table: {} for table in SEEN})
    device.connect()
    for topic in ("c1", "c2", "c3"):
        device.subscribe("chosen", {"topic": topic})
    device.wait_synced()
    return device


def allowed(source: SourceDb) -> set[str]:
    return {str(row[0]) for query in SEEN.values() for row in source.fetch(query)}


def agree(device: Device, source: SourceDb) -> None:
    query = " UNION ALL ".join(f"SELECT id FROM {table}" for table in SEEN)
    device.wait_for(f"{query} ORDER BY id", [{"id": row_id} for row_id in sorted(allowed(source))])


def test_withdrawn_rights_remove_rows(source_db: SourceDb, device: Device) -> None:
    agree(device, source_db)
    for withdrawal, gone in STEPS:
        before = allowed(source_db)
        source_db.execute(withdrawal)
        assert before - allowed(source_db) == gone
        agree(device, source_db)

    source_db.execute(
        "insert into members values ('m5', 'p3', 'a'); insert into shares values ('other', 'a');"
        "update team_members set suspended = false; update notes set readers = '{a}' where id = 'n2';"
        "update topics set followers = '[\"a\"]' where id = 'c3'; insert into staff values ('k3', 'a')"
    )
    agree(device, source_db)
    device.unsubscribe("chosen", {"topic": "c3"})
