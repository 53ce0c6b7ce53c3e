"""A service with several databases, as it is configured and run: none stops another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from headwater.cli.startup import warn_of_same_databases
from tests.support.command import Outcome, headwater
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import client_auth, connection_to, free_port, token_for
from tests.support.model_client import ModelClient
from tests.support.waiting import wait_until

RULES = """
config: {edition: 3}
streams:
  orders: {auto_subscribe: true, query: 'SELECT * FROM orders'}
  products: {auto_subscribe: true, query: 'SELECT * FROM "catalogue.public".products'}
"""
ORDERS = "create table orders (id text primary key, product text); insert into orders values ('o1', 'p1')"
PRODUCTS = "create table products (id text primary key, name text); insert into products values ('p1', 'pen')"


def several(folder: Path, *sources: SourceDb, **more: object) -> dict[str, object]:
    """The config of a service over these databases: the first is `default`, the next `catalogue`."""
    connections = []
    for source in sources:
        settings = source.settings()
        prefix = {"slot_name_prefix": settings.slot_prefix}
        connections.append(connection_to(settings.port, settings.database) | prefix)
    connections[1]["tag"] = "catalogue"
    return service(folder, RULES, {"connections": connections}, **more)


def service(folder: Path, rules: str, replication: dict[str, object], **more: object) -> dict[str, object]:
    """The config of a service with a store of its own."""
    return {
        "replication": replication,
        "storage": {"type": "sqlite", "path": str(folder / "store")},
        "sync_config": {"content": rules},
        "host": "127.0.0.1",
        "port": free_port(),
        "api": {"workers": 1},
        "client_auth": client_auth(),
        **more,
    }


def with_tables(source: SourceDb, tables: str) -> SourceDb:
    source.execute(tables)
    source.execute("create publication headwater for all tables")
    return source


def rows_at(config: dict[str, object]) -> set[tuple[str, str]]:
    """What a new device gets. Nothing while the endpoint has nothing."""
    headers = {"Authorization": f"Token {token_for('anna')}"}
    url = f"http://127.0.0.1:{config['port']}/sync/stream"
    client = ModelClient()
    with httpx.stream("POST", url, headers=headers, json={"include_checksum": True, "raw_data": True}) as answer:
        if answer.status_code != 200:
            return set()
        for line in answer.iter_lines():
            client.receive(line.encode() + b"\n")
            if client.completed:
                break
    return set(client.rows)


def test_two_databases_are_served_as_one(new_source_db: Callable[[], SourceDb], launch: Launch, tmp_path: Path) -> None:
    first, second = with_tables(new_source_db(), ORDERS), with_tables(new_source_db(), PRODUCTS)
    config = several(tmp_path, first, second)
    running = launch("serve", config)
    running.wait_ready(int(str(config["port"])))
    wait_until(lambda: rows_at(config) == {("orders", "o1"), ("products", "p1")}, "the rows of both")
    second.execute("insert into products values ('p2', 'ink')")
    first.execute("delete from orders")
    wait_until(lambda: rows_at(config) == {("products", "p1"), ("products", "p2")}, "the changes of both")
    running.ask_to_end()
    assert running.wait() == 0


@pytest.mark.long
def test_a_database_that_is_missing_stops_no_other(
    new_source_db: Callable[[], SourceDb], launch: Launch, tmp_path: Path
) -> None:
    first, second = with_tables(new_source_db(), ORDERS), new_source_db()
    config = several(tmp_path, first, second)  # the second has no publication yet: a person has to make it
    running = launch("serve", config)
    running.wait_ready(int(str(config["port"])))
    wait_until(lambda: rows_at(config) == {("orders", "o1")}, "the rows of the first")
    running.wait_for("(source catalogue)")
    first.execute("insert into orders values ('o2', 'p1')")
    wait_until(lambda: rows_at(config) == {("orders", "o1"), ("orders", "o2")}, "a change of the first")
    with_tables(second, PRODUCTS)
    wait_until(lambda: len(rows_at(config)) == 3, "the rows of the second")


@pytest.mark.long
def test_each_source_in_a_process_of_its_own(
    new_source_db: Callable[[], SourceDb], launch: Launch, tmp_path: Path
) -> None:
    first, second = with_tables(new_source_db(), ORDERS), with_tables(new_source_db(), PRODUCTS)
    config = several(tmp_path, first, second)
    launch("replicate", config, "--source", "default")
    endpoint = launch("api", config)
    endpoint.wait_ready(int(str(config["port"])))
    wait_until(lambda: rows_at(config) == {("orders", "o1")}, "the rows of the first")
    launch("replicate", config, "--source", "catalogue")
    wait_until(lambda: rows_at(config) == {("orders", "o1"), ("products", "p1")}, "the rows of both")
    unknown = launch("replicate", config, "--source", "nobody")
    assert unknown.wait() == 1
    assert "there is no source nobody" in unknown.output
    assert "use one of: default, catalogue" in unknown.output


@pytest.mark.long
def test_slots_of_two_sources_differ(new_source_db: Callable[[], SourceDb], launch: Launch, tmp_path: Path) -> None:
    """Two shards in one database, by publications of their own."""
    source = new_source_db()
    source.execute(ORDERS + "; " + PRODUCTS)
    source.execute("create publication one for table orders; create publication two for table products")
    config = several(tmp_path, source, source)
    connections = config["replication"]["connections"]  # type: ignore[index]
    connections[0]["publications"], connections[1]["publications"] = ["one"], ["two"]
    running = launch("serve", config)
    running.wait_ready(int(str(config["port"])))
    wait_until(lambda: len(rows_at(config)) == 2, "the rows of both")
    with psycopg.connect(source.dsn) as conn:
        slots = conn.execute("select count(*) from pg_replication_slots where database = current_database()").fetchone()
    assert slots == (2,)


def test_one_database_by_two_addresses(source_db: SourceDb, caplog: pytest.LogCaptureFixture) -> None:
    here = source_db.settings()
    other_name = "localhost" if here.host != "localhost" else "127.0.0.1"
    alias = replace(here, tag="alias", host=other_name)
    warn_of_same_databases([here, replace(alias, publications=("of_its_own",)), replace(here, tag="away", port=1024)])
    assert caplog.text == ""
    warn_of_same_databases([here, alias])
    assert "sources default and alias seem to be one database" in caplog.text


def test_commands_of_several_sources(new_source_db: Callable[[], SourceDb], launch: Launch, tmp_path: Path) -> None:
    first, second = with_tables(new_source_db(), ORDERS), with_tables(new_source_db(), PRODUCTS)
    config = several(tmp_path, first, second)
    path = tmp_path / "several.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    running = launch("serve", config)
    running.wait_ready(int(str(config["port"])))
    wait_until(lambda: len(rows_at(config)) == 2, "the rows of both")

    def told(*arguments: str) -> Outcome:
        return headwater(*arguments, "--config", str(path))

    status = told("source", "status", "--json")
    assert status.code == 0, status.err
    assert [each["source"] for each in json.loads(status.out)["sources"]] == ["default", "catalogue"]
    alone = told("source", "status", "--json", "--source", "catalogue")
    assert [table["table"] for table in json.loads(alone.out)["tables"]] == ["public.products"]
    doctor = told("doctor")
    assert "catalogue: settings, rights, slots, replica identities and publication are as needed" in doctor.out
    unnamed = told("source", "resync", "products")
    assert unnamed.code == 1
    assert "--source: several sources are configured" in unnamed.err
    assert told("source", "resync", "products", "--source", "catalogue").code == 0
    audit = told("audit")
    assert audit.code == 0, audit.out + audit.err
    assert audit.out.count("no row differs") == 2
    prepared = told("source", "prepare", "--no-triggers")
    assert prepared.code == 0, prepared.err
    assert "source catalogue" in prepared.out


@pytest.fixture
def guarded(source_with: Callable[..., SourceDb]) -> Iterator[tuple[SourceDb, SourceDb]]:
    """Two databases of one server, of which the second is followed by a role of its own that needs a password."""
    first = with_tables(source_with(), ORDERS)
    first.execute("create role follower login superuser password 'right'")
    first.execute("create database catalogue")
    second = with_tables(SourceDb(first.server, "catalogue"), PRODUCTS)
    hba = first.server.data_dir / "pg_hba.conf"
    hba.write_text("host all follower 127.0.0.1/32 scram-sha-256\n" + hba.read_text(), encoding="utf-8")
    first.execute("select pg_reload_conf()")
    yield first, second
    second.connection.close()


def as_follower(folder: Path, sources: tuple[SourceDb, SourceDb], password: str) -> dict[str, object]:
    config = several(folder, *sources)
    connections = config["replication"]["connections"]  # type: ignore[index]
    connections[1] |= {"username": "follower", "password": password}
    return config


def standing(folder: Path, config: dict[str, object]) -> dict[str, dict[str, Any]]:
    """What the status says of each source."""
    path = folder / "status.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    sources = json.loads(headwater("source", "status", "--json", "--config", path).out)["sources"]
    return {each["source"]: each for each in sources}


REJECTED = "rejects user name or password"


def test_wrong_password_of_one_source_at_the_start(
    guarded: tuple[SourceDb, SourceDb], launch: Launch, tmp_path: Path
) -> None:
    first, _ = guarded
    wrong, right = as_follower(tmp_path, guarded, "wrong"), as_follower(tmp_path, guarded, "right")
    wrong["port"] = right["port"]
    running = launch("serve", wrong)
    running.wait_ready(int(str(wrong["port"])))
    wait_until(lambda: rows_at(wrong) == {("orders", "o1")}, "the rows of the first")
    running.wait_for("the source is tried again every 30 s (source catalogue)")
    first.execute("insert into orders values ('o2', 'p1')")
    wait_until(lambda: len(rows_at(wrong)) == 2, "a change of the first")
    assert REJECTED in running.output
    assert "set username and password in replication.connections" in running.output
    told = standing(tmp_path, wrong)
    assert told["default"]["replicator"]["state"] == "streaming"
    wait_until(lambda: standing(tmp_path, wrong)["catalogue"]["replicator"]["cause"], "the replicator to report why")
    cause = standing(tmp_path, wrong)["catalogue"]["replicator"]["cause"]
    assert (cause["code"], REJECTED in cause["what"]) == ("HW_2002", True)
    running.ask_to_end()
    assert running.wait() == 0
    again = launch("serve", right)
    again.wait_ready(int(str(right["port"])))
    wait_until(lambda: len(rows_at(right)) == 3, "the rows of both")


@pytest.mark.long
def test_password_of_one_source_becomes_wrong(
    guarded: tuple[SourceDb, SourceDb], launch: Launch, tmp_path: Path
) -> None:
    first, second = guarded
    config = as_follower(tmp_path, guarded, "right")
    running = launch("serve", config)
    running.wait_ready(int(str(config["port"])))
    wait_until(lambda: len(rows_at(config)) == 2, "the rows of both")
    first.execute("alter role follower password 'other'")
    first.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'follower'")
    running.wait_for(REJECTED)
    second.execute("insert into products values ('p2', 'ink')")
    first.execute("insert into orders values ('o2', 'p1')")
    wait_until(lambda: ("orders", "o2") in rows_at(config), "a change of the first")
    wait_until(lambda: REJECTED in str(standing(tmp_path, config)["catalogue"]["replicator"]), "it to be reported")
    assert standing(tmp_path, config)["default"]["replicator"]["state"] == "streaming"
    assert ("products", "p2") not in rows_at(config)
    first.execute("alter role follower password 'right'")
    wait_until(lambda: len(rows_at(config)) == 4, "the change of the second")


@pytest.mark.long
def test_lease_of_one_source_is_held_by_another_process(
    new_source_db: Callable[[], SourceDb], launch: Launch, tmp_path: Path
) -> None:
    first, second = with_tables(new_source_db(), ORDERS), with_tables(new_source_db(), PRODUCTS)
    config = several(tmp_path, first, second)
    other = launch("replicate", config, "--source", "catalogue")
    wait_until(
        lambda: standing(tmp_path, config)["catalogue"]["replicator"]["state"] == "streaming", "the other to follow it"
    )
    running = launch("serve", config)
    running.wait_ready(int(str(config["port"])))
    wait_until(lambda: len(rows_at(config)) == 2, "the rows of both")
    running.wait_for("(source catalogue)")
    told = standing(tmp_path, config)
    assert {each["replicator"]["state"] for each in told.values()} == {"streaming"}
    first.execute("insert into orders values ('o2', 'p1')")
    second.execute("insert into products values ('p2', 'ink')")
    wait_until(lambda: len(rows_at(config)) == 4, "the changes of both")
    other.ask_to_end()
    assert other.wait() == 0
    second.execute("insert into products values ('p3', 'cap')")
    wait_until(lambda: len(rows_at(config)) == 5, "a change that nobody else could bring")
