"""Computed tables: rows that are the result of a query in the source, as devices see them."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import orjson
import psycopg
import pytest

from headwater.insight.explain import explain_row
from headwater.insight.rows import CurrentRows
from headwater.oplog.lsn import parse_lsn
from headwater.pipeline import keyed
from headwater.replication.computed import RefreshState
from headwater.replication.jobs import refresh
from headwater.sync.request import RequestLimits
from headwater_rules.results import SyncRequest
from tests.support.command import Run
from tests.support.computed_truth import refresh_state, shown
from tests.support.fix_headwater import WATCHED, Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_sources import NewSources
from tests.support.waiting import wait_until

ORDERS = """
create table orders (id int primary key, account_id text, amount numeric);
insert into orders select i, 'a' || i % 100, i from generate_series(1, 1000) i;
"""
TOTALS = "SELECT account_id, sum(amount) AS total, count(*) AS n FROM orders GROUP BY account_id"


def config(query: str = TOTALS, key: str = "account_id", refresh: str = "{every: 1d}", more: str = "") -> str:
    return f"""
config: {{edition: 3}}
tables:
  account_totals:
    query: {orjson.dumps(query).decode()}
    key: [{key}]
    refresh: {refresh}
    {more}
streams:
  totals: {{auto_subscribe: true, query: "SELECT * FROM account_totals"}}
"""


AFTER = "{after: [orders], least: 0s}"


def state(deployment: Deployment) -> RefreshState:
    return refresh_state(deployment, "account_totals")


def refreshed(deployment: Deployment, after: float = 0.0) -> RefreshState:
    """Wait until a refresh has succeeded that began after the last one."""
    wait_until(lambda: state(deployment).at > after, "a refresh", 30)
    return state(deployment)


def totals(source: SourceDb) -> dict[str, dict[str, object]]:
    rows = source.fetch(f"select account_id, total::text, n from ({TOTALS}) q")
    return {a: {"account_id": a, "total": t, "n": n} for a, t, n in rows}


def shows_truth(deployment: Deployment, source: SourceDb) -> None:
    wait_until(lambda: shown(deployment) == totals(source), "the device to show the sums", 30)


@pytest.fixture
def orders(source_db: SourceDb) -> SourceDb:
    source_db.execute(ORDERS)
    return source_db


def test_device_gets_result_of_query(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config()).start()
    refreshed(deployment)
    assert shown(deployment) == totals(orders)


def test_commit_to_table_refreshes_only_what_changed(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config(refresh=AFTER)).start()
    shows_truth(deployment, orders)
    before = deployment.op_count()
    orders.execute("update orders set amount = amount + 1 where account_id = 'a7'")
    shows_truth(deployment, orders)
    assert deployment.op_count() == before + 1
    orders.execute("delete from orders where account_id = 'a8'")
    shows_truth(deployment, orders)
    assert "a8" not in shown(deployment)


def test_result_is_refreshed_by_clock(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config(refresh="{every: 200ms, least: 0s}")).start()
    shows_truth(deployment, orders)
    orders.execute("insert into orders values (2001, 'new', 7)")
    shows_truth(deployment, orders)


def test_message_refreshes_as_of_its_commit(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config(refresh="{every: 1d, least: 0s}")).start()
    shows_truth(deployment, orders)
    before = totals(orders)
    orders.execute("update orders set amount = 0 where account_id = 'a1'")
    assert shown(deployment) == before
    orders.execute("select pg_logical_emit_message(true, 'headwater', 'refresh account_totals')")
    shows_truth(deployment, orders)


def test_tables_of_view_are_found(deploy: Deploy, orders: SourceDb) -> None:
    orders.execute("create view seen as select * from orders where amount < 5000")
    query = TOTALS.replace("FROM orders", "FROM seen")
    deployment = deploy(config(query, refresh="{after: auto, least: 0s}")).start()
    shows_truth(deployment, orders)
    for account in ("a9", "a10", "a11"):  # once the tables are known, one refresh comes without a commit
        orders.execute("update orders set amount = amount + 1 where account_id = %s", account)
        shows_truth(deployment, orders)


QUERIES = {
    "top": ("SELECT id, amount FROM orders ORDER BY amount DESC LIMIT 10", "id"),
    "distinct": ("SELECT DISTINCT account_id FROM orders", "account_id"),
    "window": ("SELECT id, rank() OVER (PARTITION BY account_id ORDER BY amount) AS place FROM orders", "id"),
    "several columns": (
        "SELECT account_id, id % 2 AS odd, count(*) AS n FROM orders GROUP BY 1, 2;",
        "account_id, odd",
    ),
    "a comment": ("SELECT id, 'a;)' AS text FROM orders -- the end", "id"),
    "left join": ("SELECT a.id, b.id AS other FROM orders a LEFT JOIN orders b ON b.id = a.id + 990", "id"),
}


@pytest.mark.parametrize("query", QUERIES)
def test_any_query_is_followed(deploy: Deploy, orders: SourceDb, query: str) -> None:
    text, key = QUERIES[query]
    deployment = deploy(config(text, key, AFTER)).start()

    def as_source() -> bool:
        rows = orders.fetch(f"select to_jsonb(q) from ({text.removesuffix(';')}\n) q")
        there = [sorted(row.items()) for (row,) in rows]
        return sorted(there) == sorted(sorted(_plain(row).items()) for row in shown(deployment).values())

    wait_until(as_source, "the device to show the result", 30)
    orders.execute(
        "update orders set amount = 1500 - amount, account_id = 'b' where id % 7 = 0; delete from orders where id = 3"
    )
    wait_until(as_source, "the device to show the new result", 30)


def _plain(row: dict[str, object]) -> dict[str, object]:
    """Without the id that a device adds, and with numeric values as JSON has them."""
    return {name: int(str(value)) if name == "amount" else value for name, value in row.items()}


FAULTS = {
    "HW_2701": ("alter table orders rename column amount to price", "column"),
    "HW_2703": ("", "are in several rows"),
    "HW_2704": ("insert into orders values (5000, null, 1)", "account_id"),
}


@pytest.mark.parametrize("code", ["HW_2701", "HW_2704"])
def test_fault_keeps_rows_and_is_found(deploy: Deploy, orders: SourceDb, code: str) -> None:
    deployment = deploy(config(refresh="{every: 200ms, least: 0s}"), intervals=WATCHED).start()
    shows_truth(deployment, orders)
    before, (change, said) = totals(orders), FAULTS[code]
    orders.execute(change)
    wait_until(lambda: state(deployment).code == code, "the fault to be noted", 30)
    assert said in state(deployment).what
    assert shown(deployment) == before
    wait_until(lambda: code in {each.code for each in deployment.health().findings}, "the finding", 30)
    (finding,) = [each for each in deployment.health().findings if each.code == code]
    assert finding.fatal
    assert "account_totals" in finding.what


def test_key_in_several_rows_is_a_fault(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config("SELECT account_id, amount FROM orders")).start()
    wait_until(lambda: state(deployment).code == "HW_2703", "the fault to be noted", 30)
    assert "100 keys (account_id) are in several rows" in state(deployment).what
    assert shown(deployment) == {}


def test_result_that_does_not_fit_into_memory(
    deploy: Deploy, orders: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compared on disk, and written by parts in one transaction."""
    monkeypatch.setattr(refresh, "_MEMORIES", 0)
    monkeypatch.setattr(keyed, "_AT_ONCE", 3)
    monkeypatch.setattr(keyed, "_WRITTEN_AT_ONCE", 2_000)
    deployment = deploy(config(refresh=AFTER)).start()
    shows_truth(deployment, orders)
    orders.execute("update orders set amount = 0 where account_id < 'a2'; delete from orders where account_id = 'a77'")
    shows_truth(deployment, orders)
    wait_until(lambda: (state(deployment).rows, state(deployment).changed) == (99, 13), "what differs to be noted", 30)


def test_no_room_to_compare_keeps_rows(deploy: Deploy, orders: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    deployment = deploy(config(refresh=AFTER)).start()
    shows_truth(deployment, orders)
    before = shown(deployment)
    with monkeypatch.context() as patch:
        patch.setattr(refresh, "_MEMORIES", 0)
        patch.setattr(keyed, "tempfile", SimpleNamespace(TemporaryFile=full))
        orders.execute("update orders set amount = 0")
        wait_until(lambda: state(deployment).code == "HW_2706", "the fault", 30)
        assert shown(deployment) == before
    orders.execute("delete from orders where id = 1")
    shows_truth(deployment, orders)


def test_slow_query_is_ended(deploy: Deploy, orders: SourceDb) -> None:
    query = "SELECT id, pg_sleep(1) FROM orders"
    deployment = deploy(config(query, "id", "{every: 1d, timeout: 200ms}")).start()
    wait_until(lambda: state(deployment).code == "HW_2702", "the fault to be noted", 30)
    assert "0.2 s" in state(deployment).what


def test_largest_timeout_of_postgres_is_not_exceeded(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config(refresh="{every: 1d, timeout: 30d}")).start()
    shows_truth(deployment, orders)


@pytest.mark.parametrize("sqlstate", ["53400", "58P01", "57P01"])
def test_any_error_of_query_is_a_fault(deploy: Deploy, orders: SourceDb, sqlstate: str) -> None:
    orders.execute(
        "create function fail(code text) returns int language plpgsql as"
        " $$ begin raise exception 'temporary file size exceeds the limit' using errcode = code; end $$"
    )
    deployment = deploy(config(f"SELECT id, fail('{sqlstate}') FROM orders", "id")).start()
    wait_until(lambda: state(deployment).code == "HW_2701", "the fault to be noted", 30)
    assert "temporary file size exceeds the limit" in state(deployment).what


def test_query_that_ends_its_session_does_not_hold_up_others(deploy: Deploy, orders: SourceDb) -> None:
    query = "SELECT id, pg_terminate_backend(pg_backend_pid()) FROM orders"
    ending = f"  aaa: {{query: {query!r}, key: [id], refresh: {{every: 1d}}}}\n  account_totals:"
    yaml = config().replace("  account_totals:", ending)
    deployment = deploy(yaml + '  aaa: {auto_subscribe: true, query: "SELECT * FROM aaa"}\n').start()
    shows_truth(deployment, orders)


def test_query_that_ends_its_session_each_time_waits_longer_and_is_found(deploy: Deploy, orders: SourceDb) -> None:
    orders.execute("create sequence attempts")
    orders.execute(
        "create extension dblink; create function attempt() returns int language sql as $$"
        f" select n::int from dblink('{orders.uri}', 'select nextval(''attempts'')') d(n bigint) $$"
    )
    query = "SELECT attempt() AS id, pg_terminate_backend(pg_backend_pid()) AS ended"
    deployment = deploy(config(query, "id", "{every: 200ms, least: 0s}"), intervals=WATCHED).start()
    wait_until(lambda: "HW_2709" in {each.code for each in deployment.health().findings}, "the finding", 30)
    (finding,) = [each for each in deployment.health().findings if each.code == "HW_2709"]
    assert "account_totals" in finding.what
    deployment.stop()
    deployment.start()  # what a crash of the server, or of the service, comes to
    deployment.caught_up()
    assert orders.fetch("select last_value from attempts") == [(3,)]
    deployment.redeploy(config(refresh="{every: 200ms, least: 0s}"))
    shows_truth(deployment, orders)
    assert not state(deployment).unfinished


def test_audit_compares_with_result_of_query(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config()).start()
    before = refreshed(deployment)
    orders.execute("update orders set amount = amount + 1 where account_id = 'a7'")
    (found,) = deployment.ask("audit", tables=[])["computed"]
    assert (found["table"], found["rows"], found["differ"], found["problem"]) == ("account_totals", 100, 1, "")
    assert found["rows_as_of"] == before.lsn
    assert parse_lsn(found["lsn"]) > parse_lsn(before.lsn)
    assert shown(deployment) != totals(orders)
    orders.execute("alter table orders rename amount to price")
    (found,) = deployment.ask("audit", tables=[], repair=True)["computed"]
    assert 'column "amount" does not exist' in found["problem"]
    orders.execute("alter table orders rename price to amount")
    (found,) = deployment.ask("audit", tables=[], repair=True)["computed"]
    assert found["differ"] == 1
    assert shown(deployment) == totals(orders)


def test_resync_by_name_refreshes(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config()).start()
    refreshed(deployment)
    orders.execute("delete from orders where account_id = 'a7'")
    result = deployment.ask("resync", tables=["account_totals"])
    assert [(each["table"], each["differ"]) for each in result["computed"]] == [("account_totals", 1)]
    assert result["rows_compared"] == 0  # no other table
    assert shown(deployment) == totals(orders)
    assert "there are: account_totals" in deployment.ask("resync", tables=["totals"])["error"]


REWRITES = {
    "truncate": "truncate orders; insert into orders select i, 'b', i from generate_series(1, 500) i",
    "alter": "alter table orders alter column id type bigint",
    "replace": "create table other as table orders; drop table orders; alter table other rename to orders",
}


@pytest.mark.parametrize("rewrite", REWRITES)
def test_rewritten_table_is_not_taken_for_empty(deploy: Deploy, orders: SourceDb, rewrite: str) -> None:
    deployment = deploy(config(refresh="{every: 1d, least: 0s}")).start()
    before, ops = refreshed(deployment).at, deployment.op_count()
    with psycopg.connect(orders.dsn) as conn:
        conn.execute(REWRITES[rewrite].encode())
        orders.execute("select pg_logical_emit_message(true, 'headwater', 'refresh account_totals')")
        waiting = (  # it has its snapshot by then
            "select from pg_stat_activity where datname = current_database()"
            " and application_name = 'headwater query' and wait_event_type = 'Lock'"
        )
        wait_until(lambda: orders.fetch(waiting), "the query to wait for the lock", 30)
    refreshed(deployment, before)
    assert shown(deployment) == totals(orders)
    assert deployment.op_count() - ops == (101 if rewrite == "truncate" else 0)


def test_edited_refresh_counts_at_once(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config()).start()
    before = refreshed(deployment).at
    orders.execute("update orders set amount = 0 where account_id = 'a1'")
    deployment.redeploy(config(refresh="{after: auto, least: 0s}"))
    refreshed(deployment, before)
    shows_truth(deployment, orders)
    orders.execute("update orders set amount = 0 where account_id = 'a2'")
    shows_truth(deployment, orders)


@pytest.mark.parametrize(
    "query", ["INSERT INTO orders VALUES (9999) RETURNING id", "SELECT 1) TO PROGRAM 'true' --", "SELECT 1; SELECT 2"]
)
def test_query_can_only_read(deploy: Deploy, orders: SourceDb, query: str) -> None:
    deployment = deploy(config(query, "id")).start()
    wait_until(lambda: state(deployment).code == "HW_2701", "the fault to be noted", 30)
    assert orders.fetch("select count(*) from orders") == [(1000,)]


def test_column_that_is_gone_is_a_fault_until_query_is_edited(deploy: Deploy, orders: SourceDb) -> None:
    often = "{every: 200ms, least: 0s}"
    deployment = deploy(config("SELECT * FROM orders", "id", often)).start()
    wait_until(lambda: len(shown(deployment)) == 1000, "the rows", 30)
    before = deployment.op_count()
    orders.execute("alter table orders drop column amount")
    wait_until(lambda: state(deployment).code == "HW_2705", "the fault to be noted", 30)
    assert "amount" in state(deployment).what
    assert deployment.op_count() == before
    deployment.redeploy(config("SELECT id, account_id FROM orders", "id", often))
    wait_until(lambda: shown(deployment).get("1") == {"id": 1, "account_id": "a1"}, "the rows without the column", 30)
    assert not state(deployment).code


def test_edited_query_sends_only_what_differs(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config()).start()
    shows_truth(deployment, orders)
    buckets, before = set(deployment.buckets("ann")), deployment.op_count()
    deployment.redeploy(config(f"{TOTALS} HAVING account_id <> 'a5'"))
    wait_until(lambda: "a5" not in shown(deployment), "the row to be gone", 30)
    assert set(deployment.buckets("ann")) == buckets
    assert deployment.op_count() == before + 1


def test_other_key_gives_rows_other_ids(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config("SELECT id AS number, account_id FROM orders", "number")).start()
    wait_until(lambda: len(shown(deployment)) == 1000, "the rows", 30)
    deployment.redeploy(config("SELECT id AS number, account_id FROM orders", "number, account_id"))
    wait_until(lambda: '["1","a1"]' in shown(deployment), "the new ids", 30)
    assert len(shown(deployment)) == 1000


def test_table_that_goes_leaves_devices(deploy: Deploy, orders: SourceDb) -> None:
    both = config() + '  orders: {auto_subscribe: true, query: "SELECT * FROM orders WHERE id < 3"}\n'
    deployment = deploy(both, keep_stopped=0.0).start()
    wait_until(lambda: len(shown(deployment)) == 102, "the rows", 30)
    gone = 'config: {edition: 3}\nstreams: {orders: {auto_subscribe: true, query: "SELECT * FROM orders WHERE id < 3"}}'
    deployment.redeploy(gone)
    wait_until(lambda: set(shown(deployment)) == {"1", "2"}, "the rows to be gone", 30)

    def removed() -> bool:
        with deployment.store() as store:
            return not any(table.computed for table in store.all_tables(deployment.name))

    wait_until(removed, "the table to be gone from the store", 30)


def test_table_is_served_with_the_version_that_adds_it(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(
        'config: {edition: 3}\nstreams: {orders: {auto_subscribe: true, query: "SELECT * FROM orders WHERE id < 3"}}'
    ).start()
    deployment.redeploy(config())
    assert shown(deployment) == totals(orders)


def test_new_stream_over_computed_table_has_its_rows(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config()).start()
    shows_truth(deployment, orders)
    more = '  one: {auto_subscribe: true, query: "SELECT account_id AS id, n FROM account_totals AS one WHERE n > 1"}\n'
    deployment.redeploy(config() + more)
    rows = deployment.rows("ann")
    assert len(rows) == 200
    assert rows["one", "a1"] == {"id": "a1", "n": 10}


def test_restart_refreshes_what_changed_meanwhile(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config(refresh=AFTER)).start()
    shows_truth(deployment, orders)
    before = deployment.op_count()
    deployment.stop()
    orders.execute("update orders set amount = 0 where account_id = 'a3'")
    deployment.start()
    shows_truth(deployment, orders)
    assert deployment.op_count() == before + 1


def test_lost_slot_refreshes_all_tables(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config()).start()
    refreshed(deployment)
    deployment.stop_and_let_go()
    orders.lose_slots()
    orders.execute("update orders set amount = 0 where account_id = 'a3'")
    deployment.start()
    shows_truth(deployment, orders)


def test_unpublished_table_is_a_finding(deploy: Deploy, orders: SourceDb) -> None:
    orders.execute("create table others (id int primary key); create publication headwater for table others")
    deployment = deploy(config(refresh=AFTER), intervals=WATCHED).start()
    shows_truth(deployment, orders)

    def found() -> dict[str, str]:
        return {each.code: each.what for each in deployment.health().findings}

    wait_until(lambda: "HW_2707" in found(), "the finding", 30)
    assert "public.orders" in found()["HW_2707"]


def test_sources_compute_each_their_own(new_sources: NewSources) -> None:
    yaml = """
config: {edition: 3}
tables:
  sums_a:
    query: SELECT sum(amount) AS total FROM orders
    key: [total]
    source: a
    refresh: {after: [orders], least: 0s}
  sums_b:
    query: SELECT sum(amount) AS total FROM orders
    key: [total]
    source: b
    refresh: {after: [orders], least: 0s}
streams:
  sums: {auto_subscribe: true, queries: [SELECT * FROM sums_a, SELECT * FROM sums_b]}
"""
    sources = new_sources(yaml, {"a": ORDERS, "b": ORDERS + "delete from orders where id > 10"}).start()

    def sums() -> dict[str, object]:
        return {table: row["total"] for (table, _), row in sources.rows("ann").items()}

    wait_until(lambda: sums() == {"sums_a": "500500", "sums_b": "55"}, "the sums", 30)
    sources["b"].source.execute("delete from orders where id = 10")
    wait_until(lambda: sums() == {"sums_a": "500500", "sums_b": "45"}, "the new sum", 30)


def test_rows_are_explained_as_of_their_state(deploy: Deploy, orders: SourceDb) -> None:
    deployment = deploy(config()).start()
    refreshed(deployment)
    with deployment.store() as store:
        current = CurrentRows(store, (deployment.settings,))
        request = SyncRequest({"sub": "ann"})
        found = explain_row(deployment.reader, current, request, "account_totals", "a1", RequestLimits())
    assert found.included
    (note,) = [note for note in found.notes if "is computed" in note]
    assert state(deployment).lsn in note


def test_check_asks_source(orders: SourceDb, tmp_path: Path, headwater_here: Run) -> None:
    (tmp_path / "headwater.yaml").write_text(
        f"replication: {{connections: [{{uri: '{orders.uri}', sslmode: disable}}]}}\n"
    )

    def checked(query: str, reads: str = "SELECT * FROM account_totals WHERE n > 1") -> tuple[int, str]:
        text = config(query).replace("SELECT * FROM account_totals", reads)
        (tmp_path / "sync.yaml").write_text(text)
        outcome = headwater_here("rules", "check", "sync.yaml", "--schema")
        return outcome.code, outcome.err

    assert checked(TOTALS)[0] == 0
    code, said = checked(TOTALS.replace("amount", "prize"))
    assert code == 1
    assert "HW_R310" in said
    assert 'column "prize" does not exist' in said
    assert "the result has no column account_id" in checked("SELECT 1 AS id")[1]
    code, said = checked(TOTALS, "SELECT account_id AS id, totals FROM account_totals")
    assert "no column `totals` in `account_totals`" in said
    assert "did you mean `total`?" in said


def test_deploy_refuses_what_check_refuses(orders: SourceDb, tmp_path: Path, headwater_here: Run) -> None:
    (tmp_path / "headwater.yaml").write_text(
        f"replication: {{connections: [{{uri: '{orders.uri}', sslmode: disable}}]}}\n"
    )
    (tmp_path / "sync.yaml").write_text(config(TOTALS.replace("amount", "prize")))
    outcome = headwater_here("rules", "deploy", "sync.yaml", "--no-wait")
    assert outcome.code == 1
    assert "error [HW_R310]" in outcome.err
    assert 'column "prize" does not exist' in outcome.err
