"""Connections that come and go with an app's tenants, as a running service follows them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from headwater.source.connect import SourceRefusedError, SourceSettings, SourceUnreachableError
from headwater.source.registry import registered
from tests.integration.test_several_databases import rows_at, service, with_tables
from tests.support.command import headwater, headwater_here
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import connection_to, free_port
from tests.support.waiting import wait_until

RULES = """
config: {edition: 3}
streams:
  notes: {auto_subscribe: true, query: 'SELECT id, body FROM tenants.public.notes'}
"""


def notes(name: str) -> str:
    return f"create table notes (id text primary key, body text); insert into notes values ('{name}', 'of {name}')"


def connection(source: SourceDb, shard: str) -> dict[str, object]:
    settings = source.settings()
    found = connection_to(settings.port, settings.database) | {"slot_name_prefix": settings.slot_prefix}
    return found | {"shard": shard}


def listing(folder: Path, listed: dict[str, object]) -> dict[str, object]:
    """The config of a service that follows what is listed."""
    replication: dict[str, object] = {
        "connections_from": [{**listed, "defaults": {"tag": "tenants"}}],
        "reread_seconds": 1,
        "remove_after_minutes": 0,
    }
    return service(folder, RULES, replication, api={"workers": 2})


def rows(config: dict[str, object]) -> set[tuple[str, str]] | None:
    """What a new device gets; None while the endpoint starts anew."""
    try:
        return rows_at(config)
    except httpx.TransportError:
        return None


def write(file: Path, *connections: dict[str, object]) -> None:
    """Replace a list in one step."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(connections), encoding="utf-8")
    new.rename(file)


def test_tenants_come_and_go(new_source_db: Callable[[], SourceDb], launch: Launch, tmp_path: Path) -> None:
    acme, globex = (with_tables(new_source_db(), notes(name)) for name in ("acme", "globex"))
    file = tmp_path / "tenants.json"
    write(file, connection(acme, "acme"))
    config = listing(tmp_path, {"file": str(file)})
    running = launch("serve", config)
    running.wait_ready(int(str(config["port"])))
    wait_until(lambda: rows(config) == {("notes", "acme")}, "the rows of the first")

    write(file, connection(acme, "acme"), connection(globex, "globex"))
    wait_until(lambda: rows(config) == {("notes", "acme"), ("notes", "globex")}, "the rows of both")

    write(file)
    wait_until(lambda: "it is empty, which counts as a mistake" in running.output, "the log to tell of the empty list")
    path = tmp_path / "service.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    doctor = headwater("doctor", "--config", path)
    assert doctor.code == 1
    assert "HW_7011" in doctor.out
    acme.execute("insert into notes values ('acme2', 'x')")
    wait_until(
        lambda: rows(config) == {("notes", "acme"), ("notes", "acme2"), ("notes", "globex")},
        "both to be followed as before",
    )

    write(file, connection(globex, "globex"))
    wait_until(lambda: rows(config) == {("notes", "globex")}, "the rows of the one that is left")
    assert running.alive
    running.ask_to_end()
    assert running.wait() == 0


def test_query(new_source_db: Callable[[], SourceDb]) -> None:
    registry = new_source_db()
    registry.execute(
        "create table tenants (name text, uri text, port int, active bool);"
        "insert into tenants values ('acme', 'postgresql://a', 5433, true), ('old', null, null, false)"
    )
    database = registry.settings()
    found = registered(database, "select name as shard, uri, port from tenants where active")
    assert found == [{"shard": "acme", "uri": "postgresql://a", "port": 5433}]
    for query, why in {
        "select nothing from tenants": 'column "nothing" does not exist',
        "delete from tenants": "cannot execute DELETE in a read-only transaction",
        "set statement_timeout = 0": "it gives no rows",
    }.items():
        with pytest.raises(SourceRefusedError, match=why):
            registered(database, query)


def test_registry_is_down(tmp_path: Path) -> None:
    nowhere = SourceSettings("127.0.0.1", "app", "headwater", port=free_port(), sslmode="disable")
    with pytest.raises(SourceUnreachableError):
        registered(nowhere, "select 1")
    server = connection_to(free_port())
    path = tmp_path / "service.json"
    path.write_text(json.dumps(listing(tmp_path, {**server, "query": "select 1"})), encoding="utf-8")
    doctor = headwater("doctor", "--config", path)
    assert doctor.code == 1
    assert "HW_7011" in doctor.out
    assert "unused" not in doctor.out, "no password"


@pytest.mark.parametrize(
    "command",
    [
        ["token", "ann"],
        ["rules", "versions"],
        ["rules", "show"],
        ["store", "stats"],
        ["store", "export", "a.archive"],
        ["store", "import", "none.archive"],
        ["store", "unseal"],
        ["compact"],
        ["migrate", "up"],
    ],
    ids=" ".join,
)
def test_command_that_needs_no_source_asks_no_registry(tmp_path: Path, command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as registry:
        registry.setblocking(False)
        listed = {**connection_to(registry.getsockname()[1]), "query": "select 1"}
        path = tmp_path / "service.json"
        path.write_text(json.dumps(listing(tmp_path, listed)), encoding="utf-8")
        headwater_here(*command, "--config", path, cwd=tmp_path)
        with pytest.raises(BlockingIOError):
            registry.accept()
