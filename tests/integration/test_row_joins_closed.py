"""Rules that evaluate a row with rows of other tables, where a mistake would show rows that nobody may see."""

from __future__ import annotations

import psycopg

from tests.integration.test_row_joins import ALL, FORMS, agree, shown, start, truth
from tests.support.changed_source import settled
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

UNMUTED = {
    "unmuted": """SELECT id, title FROM todos AS "unmuted"
        WHERE NOT EXISTS (SELECT 1 FROM muted m WHERE m.todo = unmuted.id)"""
}
TABLES = (
    "create table todos (id text primary key, title text);"
    "create table muted (id text primary key, todo text, data text);"
)


def test_version_that_comes_back(deploy: Deploy, source_db: SourceDb) -> None:
    """What an earlier deploy has evaluated is gone with its version."""
    some, others = {"unmuted": FORMS["unmuted"]}, {"named": FORMS["named"]}
    deployment = start(deploy, source_db, some)
    for forms in (ALL, some, others, some, FORMS, ALL, FORMS):
        deployment.redeploy(auto_streams(**forms))
        assert shown(deployment, forms) == truth(source_db, forms)
        assert deployment.ask("audit")["differences"] == {}


def test_lookup_of_requests_that_uses_a_known_join(deploy: Deploy, source_db: SourceDb) -> None:
    lists = {
        "lists": """SELECT id, name AS title FROM lists AS "lists"
        WHERE id NOT IN (SELECT list FROM muted WHERE list > '')"""
    }
    more = lists | {
        "todos": """SELECT id, title FROM todos AS "todos" WHERE list IN
        (SELECT id FROM lists WHERE id NOT IN (SELECT list FROM muted WHERE list > ''))"""
    }
    deployment = start(deploy, source_db, lists)
    deployment.redeploy(auto_streams(**more))
    assert shown(deployment, more) == truth(source_db, more)
    assert deployment.ask("audit")["differences"] == {}


def test_row_with_an_empty_id(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute(TABLES + "insert into todos values ('', 'empty'), ('a', 'b')")
    deployment = deploy(auto_streams(**UNMUTED)).start()
    agree(deployment, UNMUTED)
    source_db.execute("insert into muted values ('m', '')")
    agree(deployment, UNMUTED)


def test_keys_that_no_lookup_can_have(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute(
        "create table todos (id text primary key, hash bytea, rank double precision);"
        "create table muted (id text primary key, hash bytea, rank double precision);"
        r"insert into todos values ('a', '\x00', 1), ('b', '\x01', 'NaN'), ('c', null, 'Infinity'), ('d', null, null);"
        r"insert into muted values ('1', '\x00', 'NaN'), ('2', '\x02', 'Infinity'), ('3', null, null)"
    )
    forms = {
        "hashes": 'SELECT id FROM todos AS "hashes" WHERE NOT EXISTS (SELECT 1 FROM muted WHERE hash = hashes.hash)',
        "ranks": 'SELECT id FROM todos AS "ranks" WHERE NOT EXISTS (SELECT 1 FROM muted m WHERE m.rank = ranks.rank)',
    }
    deployment = deploy(auto_streams(**forms)).start()
    found = {name: set(rows) for name, rows in shown(deployment, forms).items()}
    assert found == {"hashes": {"c", "d"}, "ranks": {"a", "d"}}


def test_other_table_that_is_published_later(deploy: Deploy, source_db: SourceDb) -> None:
    """Until its rows are there, nobody knows which are missing."""
    source_db.execute(
        TABLES + "insert into todos select i::text, 'x' from generate_series(1, 50) i;"
        "insert into muted select i::text, i::text from generate_series(1, 50) i;"
        "create publication headwater for table todos"
    )
    deployment = deploy(auto_streams(**UNMUTED)).start()
    assert shown(deployment, UNMUTED) == {"unmuted": {}}
    before = deployment.op_count()
    source_db.execute("alter publication headwater add table muted")
    wait_until(lambda: settled(deployment), "comparisons to end")
    assert shown(deployment, UNMUTED) == {"unmuted": {}}
    assert deployment.op_count() == before  # none was ever sent
    source_db.execute("insert into todos values ('new', 'y')")
    agree(deployment, UNMUTED)


def test_other_table_that_is_made_again(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute(
        TABLES + "insert into todos select i::text, 'x' from generate_series(1, 50) i;"
        "insert into muted select i::text, i::text from generate_series(1, 50) i"
    )
    deployment = deploy(auto_streams(**UNMUTED)).start()
    assert shown(deployment, UNMUTED) == {"unmuted": {}}
    before = deployment.op_count()
    source_db.execute(
        "create table copied (like muted including all); insert into copied select * from muted;"
        "drop table muted; alter table copied rename to muted"
    )
    wait_until(lambda: settled(deployment), "comparisons to end")
    assert shown(deployment, UNMUTED) == {"unmuted": {}}
    assert deployment.op_count() == before  # none was ever sent
    source_db.execute("insert into todos values ('new', 'y')")
    agree(deployment, UNMUTED)


def test_other_table_that_is_locked(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute(TABLES + "insert into todos values ('a', 'x'); insert into muted values ('1', 'a')")
    plain = {"todos": 'SELECT id, title FROM todos AS "todos"'}
    deployment = deploy(auto_streams(**plain)).start()
    with psycopg.connect(source_db.dsn) as other:
        other.execute("lock table muted in access exclusive mode")
        deployment.redeploy(auto_streams(**UNMUTED))
        assert shown(deployment, UNMUTED) == {"unmuted": {}}
        other.rollback()
    wait_until(lambda: settled(deployment), "comparisons to end")
    source_db.execute("insert into todos values ('new', 'y')")
    agree(deployment, UNMUTED)
