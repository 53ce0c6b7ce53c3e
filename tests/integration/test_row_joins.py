"""Rules that evaluate a row with rows of other tables, on the whole service: devices have what Postgres answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from random import Random

import orjson
import pytest

from headwater.insight.rows import CurrentRows
from headwater.replication.stream import flush_builder, joined_rows, step_size
from headwater.storage.open import open_store
from tests.support.changed_source import settled
from tests.support.dying import FLUSH_POINTS, die_at
from tests.support.fix_headwater import Deploy, Deployment, plan_of
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

FORMS = {
    "unmuted": """SELECT id, title FROM todos AS "unmuted"
        WHERE NOT EXISTS (SELECT 1 FROM muted m WHERE m.todo = unmuted.id AND m.kind = 'hard')""",
    "unlisted": """SELECT id, title FROM todos AS "unlisted" WHERE list NOT IN (SELECT id FROM lists WHERE archived)""",
    "nullable": """SELECT id, title FROM todos AS "nullable" WHERE list NOT IN (SELECT list FROM muted)""",
    "either": """SELECT id, title FROM todos AS "either"
        WHERE done OR NOT EXISTS (SELECT 1 FROM muted WHERE todo = either.id OR list = either.list)""",
    "named": """SELECT "named".id, "named".title, l.name AS list_name, l.rank FROM todos AS "named"
        JOIN lists l ON l.id = "named".list WHERE NOT coalesce(l.archived, false)""",
    "maybe": """SELECT "maybe".id, "maybe".title, l.name AS list_name, l.rank FROM todos AS "maybe"
        LEFT JOIN lists l ON l.id = "maybe".list""",
    "orphans": """SELECT "orphans".id, "orphans".title FROM todos AS "orphans"
        LEFT JOIN lists l ON l.id = "orphans".list WHERE l.id IS NULL""",
    "defaults": """SELECT "defaults".id, "defaults".title FROM todos AS "defaults"
        LEFT JOIN lists l ON l.id = "defaults".list WHERE coalesce(l.rank, 0) < 2""",
    "nested": """SELECT id, title FROM todos AS "nested" WHERE NOT EXISTS (SELECT 1 FROM lists l
        WHERE l.id = "nested".list AND NOT EXISTS (SELECT 1 FROM muted m WHERE m.list = l.id))""",
    "later": """SELECT "later".id, "later".title FROM todos AS "later" JOIN lists l ON l.id = "later".list
        WHERE l.name > "later".title""",
    "absent_row": """SELECT "absent_row".id, "absent_row".title FROM todos AS "absent_row"
        LEFT JOIN lists l ON l.id = "absent_row".list WHERE NOT EXISTS (SELECT 1 FROM muted m WHERE m.kind = l.name)""",
    "looked_up": """SELECT id, title FROM todos AS "looked_up" WHERE list IN (SELECT id FROM lists
        WHERE id NOT IN (SELECT list FROM muted WHERE list IS NOT NULL))""",
}

COLUMNS = {
    "todos": ("title", "list", "done"),
    "lists": ("name", "rank", "archived"),
    "muted": ("todo", "list", "kind"),
}

ALL = {name: f'SELECT id, title FROM todos AS "{name}"' for name in ("all",)}

Rows = dict[str, dict[str, dict[str, object]]]


def prepare(source: SourceDb, identity: str = "default") -> None:
    source.execute(
        "create table lists (id text primary key, name text, rank double precision, archived boolean);"
        "create table muted (id text primary key, todo text, list text, kind text);"
        "create table todos (id text primary key, title text, list text, done boolean not null default false)"
    )
    for table in ("lists", "muted", "todos"):
        source.execute(f"alter table {table} replica identity {identity}")
    random = Random(1)
    for _ in range(120):
        change(source, random)


def change(source: SourceDb, random: Random) -> None:
    """One random statement."""

    def of(letter: str, count: int) -> str | None:
        return None if random.random() < 0.1 else f"{letter}{random.randrange(count)}"

    def text(*choices: str | None) -> str | None:
        return random.choice([None, *choices])

    values: dict[str, list[object]] = {
        "todos": [f"t{random.randrange(40)}", f"title {random.random():.3f}", of("l", 12), random.random() < 0.2],
        "lists": [f"l{random.randrange(12)}", text("a'b", "ü"), random.choice([None, 1, 2.5, 1e-9]), text("t", "f")],
        "muted": [f"m{random.randrange(8)}", of("t", 40), of("l", 12), text("hard", "soft")],
    }
    table = random.choice(list(values))
    if random.random() < 0.35:
        source.connection.execute(f"delete from {table} where id = %s", [f"{table[0]}{random.randrange(12)}"])
        return
    columns = COLUMNS[table]
    excluded = ", ".join(f"{name} = excluded.{name}" for name in columns)
    source.connection.execute(
        f"insert into {table} values (%s, %s, %s, %s) on conflict (id) do update set {excluded}", values[table]
    )


def truth(source: SourceDb, forms: Mapping[str, str]) -> Rows:
    found: Rows = {}
    for name, query in forms.items():
        rows = source.connection.execute(f"select to_json(q) from ({query}) q").fetchall()
        found[name] = {row["id"]: row for (row,) in rows}
    return found


def shown(deployment: Deployment, forms: Mapping[str, str]) -> Rows:
    found: Rows = {name: {} for name in forms}
    for (table, row_id), row in deployment.rows("anybody").items():
        found[table][row_id] = dict(row)
    return found


def agree(deployment: Deployment, forms: Mapping[str, str] = FORMS) -> None:
    expected = truth(deployment.source, forms)
    try:
        wait_until(lambda: shown(deployment, forms) == expected, "devices to have what Postgres answers")
    except AssertionError:
        assert shown(deployment, forms) == expected
        raise


@pytest.mark.parametrize("identity", ["default", pytest.param("full", marks=pytest.mark.long)])
def test_random_changes_and_restarts(deploy: Deploy, source_db: SourceDb, identity: str) -> None:
    prepare(source_db, identity)
    deployment, random = deploy(auto_streams(**FORMS)), Random(2)
    deployment.start()
    agree(deployment)
    for step in range(30):
        if step % 7 == 3:
            deployment.stop()
        for _ in range(random.randrange(1, 12)):
            change(source_db, random)
        if not deployment.running:
            deployment.start()
        agree(deployment)
    assert deployment.ask("audit")["differences"] == {}


def start(deploy: Deploy, source: SourceDb, forms: Mapping[str, str] = FORMS) -> Deployment:
    prepare(source)
    deployment = deploy(auto_streams(**forms)).start()
    agree(deployment, forms)
    return deployment


def test_every_stage_of_a_deploy(deploy: Deploy, source_db: SourceDb) -> None:
    """A version is served once all rows are evaluated with those that they are joined to."""
    deployment, random = start(deploy, source_db, ALL), Random(3)
    some = {name: FORMS[name] for name in ("unlisted", "named")}
    for forms in (some, FORMS, {"nested": FORMS["nested"]}, ALL, FORMS):
        deployment.redeploy(auto_streams(**forms))
        assert shown(deployment, forms) == truth(source_db, forms)
        for _ in range(10):
            change(source_db, random)
        agree(deployment, forms)
        deployment.stop()
        deployment.start()
        agree(deployment, forms)
        assert deployment.ask("audit")["differences"] == {}


@pytest.mark.parametrize(
    "statements",
    [
        "truncate lists",
        "truncate muted; insert into muted values ('m1', 't3', 'l2', 'hard')",
        "truncate todos; insert into todos values ('t1', 'again', 'l3')",
        "truncate lists, muted, todos",
        "alter table lists rename column name to called; alter table lists rename column called to name",
        "alter table lists replica identity full",
        "alter table todos replica identity full",
        "alter table todos add column more text default 'z'",
        "alter table todos add column more text",
        "alter table lists add column more text; alter table muted add column more text",
        "alter table lists add column more text default 'z'",
        "alter table lists alter column rank type integer using 3",
        """drop table muted; create table muted (id text primary key, todo text, list text, kind text);
        insert into muted values ('m1', 't3', 'l2', 'hard')""",
        """alter table lists rename to former; create table lists (like former including all);
        insert into lists select * from former where id < 'l4'; drop table former""",
    ],
)
def test_tables_that_change(deploy: Deploy, source_db: SourceDb, statements: str) -> None:
    deployment, random = start(deploy, source_db), Random(4)
    source_db.execute(statements)
    for _ in range(10):
        change(source_db, random)
    wait_until(lambda: settled(deployment), "comparisons to end")
    agree(deployment)
    assert deployment.ask("audit")["differences"] == {}


def test_rows_above_the_budget(deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows that depend on one are evaluated in steps, also after a restart in their midst."""
    monkeypatch.setattr(flush_builder, "_MOST_DEPENDENTS", 2)
    monkeypatch.setattr(step_size, "FEWEST", 3)
    monkeypatch.setattr(step_size, "MOST", 3)
    monkeypatch.setattr(joined_rows, "_MOST_KEYS", 3)
    deployment, random = start(deploy, source_db), Random(5)
    for step in range(12):
        for _ in range(15):
            change(source_db, random)
        if step % 3 == 1:
            deployment.caught_up()
            deployment.stop()
            deployment.start()
        agree(deployment)
    assert deployment.ask("audit")["differences"] == {}


def test_column_that_is_dropped_closes(deploy: Deploy, source_db: SourceDb) -> None:
    """Without the column that decides whether there is a row, nobody gets what its absence would give."""
    forms = {"unmuted": FORMS["unmuted"]}
    deployment = start(deploy, source_db, forms)
    source_db.execute("alter table muted drop column kind; insert into todos values ('new', 'x', null)")
    wait_until(lambda: settled(deployment), "comparisons to end")
    wait_until(lambda: shown(deployment, forms) == {"unmuted": {}}, "rows to leave")
    source_db.execute("alter table muted add column kind text; update muted set kind = 'hard' where id = 'm1'")
    wait_until(lambda: settled(deployment), "comparisons to end")
    agree(deployment, forms)


def test_row_that_cannot_be_evaluated_closes(deploy: Deploy, source_db: SourceDb) -> None:
    """Where a rule fails on the other row, it is not known whether there is one."""
    forms = {
        "clean": """SELECT id, title FROM todos AS "clean"
            WHERE NOT EXISTS (SELECT 1 FROM muted WHERE todo = "clean".id AND kind ->> 'hard' = 1)""",
        "nested": """SELECT id, title FROM todos AS "nested" WHERE NOT EXISTS (SELECT 1 FROM lists l
            WHERE l.id = "nested".list
            AND NOT EXISTS (SELECT 1 FROM muted m WHERE m.list = l.id AND kind ->> 'x' = 1))""",
    }
    source_db.execute(
        "create table lists (id text primary key); create table muted (id text primary key, todo text, list text, kind"
        " text); create table todos (id text primary key, title text, list text); insert into lists values ('l1');"
        "insert into todos values ('t1', 'one', 'l1'), ('t2', 'two', null); insert into muted values"
        " ('m1', 't1', 'l1', '{\"hard\": 0}'), ('m2', 't2', null, '{\"hard\": 1}')"
    )
    deployment = deploy(auto_streams(**forms)).start()

    def given() -> dict[str, set[str]]:
        return {name: set(rows) for name, rows in shown(deployment, forms).items()}

    wait_until(lambda: given() == {"clean": {"t1"}, "nested": {"t2"}}, "the first rows")
    source_db.execute("update muted set kind = 'no JSON'")
    wait_until(lambda: given() == {"clean": set(), "nested": {"t2"}}, "rows of which nothing is known to leave")
    source_db.execute("update muted set kind = '{\"x\": 1}'")
    wait_until(lambda: given() == {"clean": {"t1", "t2"}, "nested": {"t1", "t2"}}, "rows to come")
    assert deployment.ask("audit")["differences"] == {}


def test_version_that_is_deployed_again(deploy: Deploy, source_db: SourceDb) -> None:
    """What was true before its lookups were removed does not count when they are built again."""
    deployment, random = start(deploy, source_db), Random(8)
    deployment.keep_stopped = 0.0
    for _ in range(2):
        deployment.redeploy(auto_streams(**ALL))
        deployment.stop()
        deployment.start()
        for _ in range(10):
            change(source_db, random)
        deployment.redeploy(auto_streams(**FORMS))
        assert shown(deployment, FORMS) == truth(source_db, FORMS)


def test_one_checkpoint_has_both_sides(deploy: Deploy, source_db: SourceDb) -> None:
    """A transaction over both tables is one checkpoint: no device sees a row with what it was joined to before."""
    source_db.execute(
        "create table lists (id text primary key, name text);"
        "create table todos (id text primary key, title text, list text);"
        "insert into lists values ('l', '0'); insert into todos select i::text, '0', 'l' from generate_series(1, 50) i"
    )
    query = 'SELECT t.id, t.title, l.name FROM todos AS "t" JOIN lists l ON l.id = t.list'
    deployment = deploy(auto_streams(t=query)).start()
    for step in range(1, 40):
        source_db.execute(f"update lists set name = '{step}'; update todos set title = '{step}' where id < '3'")
        rows = [row for (_, row_id), row in deployment.rows("anybody").items() if row_id < "3"]
        assert len(rows) > 0
        assert {row["title"] for row in rows} == {row["name"] for row in rows}


def test_other_row_that_is_as_before_in_the_end(deploy: Deploy, source_db: SourceDb) -> None:
    """A row that came meanwhile is not left with what the other one was meanwhile. A TRUNCATE has what was written
    before it applied, in the same flush."""
    source_db.execute("create table others (id text primary key)")
    forms = {"maybe": FORMS["maybe"], "unlisted": FORMS["unlisted"], "others": "SELECT id FROM others"}
    deployment = start(deploy, source_db, forms)
    source_db.execute("insert into lists values ('l99', 'before', 1, false)")
    agree(deployment, forms)
    deployment.stop()
    source_db.execute(
        "update lists set name = 'meanwhile', archived = true where id = 'l99'; truncate others;"
        "insert into todos values ('new', 'new', 'l99'); truncate others;"
        "update lists set name = 'before', archived = false where id = 'l99'"
    )
    deployment.start()
    assert shown(deployment, forms) == truth(source_db, forms)


def test_preview_before_and_after(deploy: Deploy, source_db: SourceDb) -> None:
    """A preview has what devices have, whether the store has the lookups of the version or not."""
    forms = {name: query for name, query in FORMS.items() if name != "looked_up"}  # whose rows a request looks up
    plain = {table: f"SELECT id FROM {table}" for table in COLUMNS}
    deployment = start(deploy, source_db, plain)
    expected = truth(source_db, forms)

    def given() -> Rows:
        found: Rows = {name: {} for name in forms}
        with closing(open_store(deployment.address).open_writer()) as store:
            rows, plan = CurrentRows(store, [deployment.settings]), plan_of(auto_streams(**forms))
            pages = [rows.pages(table, 100) for table in rows.tables(plan)]
            for _, _, result in rows.scan("rows", plan, pages):
                for put in result.puts:
                    found[put.table][put.id] = {**orjson.loads(put.data), "id": put.id}
        return found

    assert given() == expected
    deployment.redeploy(auto_streams(**forms))
    assert given() == expected


def test_killed_at_each_moment(deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush_builder, "_MOST_DEPENDENTS", 4)
    monkeypatch.setattr(step_size, "FEWEST", 3)
    monkeypatch.setattr(step_size, "MOST", 3)
    deployment, random = start(deploy, source_db), Random(6)
    for point in FLUSH_POINTS * 2:
        deployment.stop()
        for _ in range(12):
            change(source_db, random)
        die_at(point, deployment, monkeypatch)
        deployment.start()
        agree(deployment)
    assert deployment.ask("audit")["differences"] == {}


def test_audit_finds_and_mends_rows_that_were_not_evaluated(deploy: Deploy, source_db: SourceDb) -> None:
    forms = {"unlisted": FORMS["unlisted"], "named": FORMS["named"]}
    deployment = start(deploy, source_db, forms)
    before = truth(source_db, forms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_rows.JoinedRows, "dependents", lambda *_: iter(()))
        source_db.execute("update lists set archived = not coalesce(archived, false), name = 'other'")
        deployment.caught_up()
    changed = truth(source_db, forms)
    rows = {row_id for name in forms for row_id in before[name].keys() | changed[name].keys()
            if before[name].get(row_id) != changed[name].get(row_id)}  # fmt: skip
    assert rows
    assert deployment.ask("audit")["differences"] == {"public.todos": len(rows)}
    deployment.ask("audit", repair=True)
    agree(deployment, forms)
