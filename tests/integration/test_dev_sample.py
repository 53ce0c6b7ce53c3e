"""The sample data of `headwater dev`: what a person, and every kind of replica identity, finds in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headwater.dev.sample import TABLES, fill, is_filled, row_count
from headwater.embedded.postgres import EmbeddedPostgres
from tests.support.fix_postgres import SourceDb

Connection = psycopg.Connection[tuple[Any, ...]]

_PEOPLE = "(select id, name from users order by created_at, id limit 2)"


@pytest.fixture(scope="module")
def full(postgres: EmbeddedPostgres) -> Iterator[Connection]:
    """As many rows as `headwater dev` makes unless told otherwise."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute("create database sample_data")
        with psycopg.connect(postgres.dsn("sample_data"), autocommit=True) as conn:
            assert fill(conn, 100_000)
            yield conn
        admin.execute("drop database sample_data")


def value(conn: Connection, query: str) -> object:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


def test_sample_has_rows_asked_for(full: Connection) -> None:
    assert 100_000 <= row_count(full) < 102_000
    assert all(value(full, f"select count(*) from {table}") for table in TABLES)
    assert value(full, "select count(*) from pg_constraint where contype = 'f'") == 5


def test_long_notes_are_toasted(full: Connection) -> None:
    count, shortest = full.execute(
        "select count(*), min(length(notes)) from todos where length(notes) > 1000"
    ).fetchall()[0]
    assert (count, shortest > 15_000) == (746, True)
    pages = value(full, "select pg_relation_size(reltoastrelid) / 8192 from pg_class where relname = 'todos'")
    assert isinstance(pages, int)
    assert pages >= 500


def test_sample_has_tables_of_all_identities(full: Connection) -> None:
    identities: dict[str, str] = dict(
        full.execute("select relname, relreplident::text from pg_class where relkind = 'r'").fetchall()
    )
    assert (identities["activity"], identities["announcements"], identities["todos"]) == ("f", "n", "d")
    copies = value(full, "select max(n) from (select count(*) as n from activity a group by a.*) as counted")
    assert copies == 3


def test_people_share_exactly_one_list(full: Connection) -> None:
    lists = full.execute(
        f"""select u.name, count(*), min(todos), max(todos) from {_PEOPLE} u
            join list_members m on m.user_id = u.id
            join lateral (select count(*) as todos from todos t where t.list_id = m.list_id) as counted on true
            group by u.name order by u.name""".encode()
    ).fetchall()
    assert lists == [("Ada", 6, 20, 20), ("Ben", 6, 20, 20)]
    common = full.execute(
        f"""select l.name from lists l join list_members m on m.list_id = l.id
            where m.user_id in (select id from {_PEOPLE} p) group by l.id, l.name having count(*) = 2""".encode()
    ).fetchall()
    assert common == [("Weekend together",)]


def test_owner_is_member_of_every_list(full: Connection) -> None:
    assert (
        value(
            full,
            """select count(*) from lists l left join list_members m on m.list_id = l.id and m.user_id = l.owner_id
           where m.role is distinct from 'owner'""",
        )
        == 0
    )
    assert (
        value(
            full,
            """select count(*) from list_members m join lists l on l.id = m.list_id
           where m.role = 'owner' and m.user_id <> l.owner_id""",
        )
        == 0
    )


def test_sample_is_deterministic(source_db: SourceDb) -> None:
    digest = "select md5(string_agg(t::text, ',' order by t::text)) from lists t where name like 'B%'"
    found = []
    for _ in range(2):
        with psycopg.connect(source_db.dsn, autocommit=True) as conn:
            assert fill(conn, 10_000)
            found.append((value(conn, digest), row_count(conn)))
            conn.execute("drop schema public cascade; create schema public")
    assert found[0] == found[1]
    assert found[0][0] is not None


def test_stopped_sample_leaves_nothing(source_db: SourceDb) -> None:
    answers = iter([True, True, True, False])
    with psycopg.connect(source_db.dsn, autocommit=True) as conn:
        assert not fill(conn, 1000, lambda: next(answers))
        assert not is_filled(conn)
        assert fill(conn, 1000)
        assert is_filled(conn)
