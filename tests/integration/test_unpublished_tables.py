"""A table that is there and whose rows can't come: it is not published, or our role may not read it. Whoever asks, or
deploys rules for it, is told the statement that mends it; all other tables are served."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.cli.startup import wait_for_source
from tests.support.command import Outcome, headwater_here
from tests.support.fix_headwater import WATCHED, Deploy, Deployment, plan_of
from tests.support.fix_postgres import SourceDb
from tests.support.waiting import wait_until

HEAD = "config: {edition: 3}\nstreams:\n"
SERVED = HEAD + "  notes: {auto_subscribe: true, query: SELECT * FROM notes}\n"
BOTH = SERVED + "  todos: {auto_subscribe: true, query: SELECT * FROM todos}\n"
NOTE, TODO = ("notes", "1"), ("todos", "1")
PUBLISH = 'ALTER PUBLICATION "headwater" ADD TABLE ONLY "public"."todos"'


class Service:
    """A source whose role owns nothing, and what an operator does about it."""

    def __init__(self, source: SourceDb, deployment: Deployment, folder: Path) -> None:
        self.source = source
        self.deployment = deployment
        self.role = deployment.user
        self._folder = folder
        uri = f"postgresql://{self.role}@127.0.0.1:{source.server.port}/{source.name}"
        prefix = deployment.settings.slot_prefix
        (folder / "headwater.yaml").write_text(
            f"replication: {{connections: [{{uri: '{uri}', sslmode: disable, slot_name_prefix: '{prefix}'}}]}}\n"
            f"storage: {{type: sqlite, path: '{deployment.directory}'}}\n"
        )

    @property
    def grant(self) -> str:
        return f'GRANT SELECT ON "public"."todos" TO "{self.role}"'

    def run(self, *arguments: str, yaml: str = BOTH) -> Outcome:
        (self._folder / "new.yaml").write_text(yaml)
        return headwater_here(*arguments, cwd=self._folder)

    def rows(self) -> set[tuple[str, str]]:
        return set(self.deployment.rows("u"))


@pytest.fixture
def service(source_db: SourceDb, deploy: Deploy, tmp_path: Path) -> Iterator[Service]:
    role = f"{source_db.name}_role"
    source_db.execute(f"create role {role} login replication")
    source_db.execute("create table notes (id text primary key); insert into notes values ('1')")
    source_db.execute("create table todos (id text primary key); insert into todos values ('1')")
    source_db.execute(f"create publication headwater for table notes; grant select on notes to {role}")
    deployment = deploy(SERVED, on_postgres=False, user=role)
    yield Service(source_db, deployment, tmp_path)
    deployment.close()
    source_db.execute(f"drop owned by {role}; drop role {role}")


def test_deploy_of_empty_streams_is_refused(service: Service) -> None:
    service.deployment.start()
    refused = service.run("rules", "deploy", "new.yaml")
    assert refused.code == 1
    assert PUBLISH in refused.err
    assert service.grant in refused.err
    assert "line 4" in refused.err or "4 |" in refused.err
    assert "--force" in refused.err
    assert len(json.loads(service.run("rules", "versions", "--json").out)) == 1

    service.source.execute(PUBLISH)
    refused = service.run("rules", "deploy", "new.yaml")
    assert refused.code == 1
    assert PUBLISH not in refused.err
    assert service.grant in refused.err

    service.source.execute(service.grant)
    deployed = service.run("rules", "deploy", "new.yaml")
    assert deployed.code == 0, deployed.err
    service.deployment.yaml = BOTH
    assert service.rows() == {NOTE, TODO}


def test_forced_deploy_serves_the_rest(service: Service) -> None:
    service.deployment.start()
    service.source.execute(PUBLISH)
    strict = BOTH.replace("edition: 3", "edition: 3, strict: true")
    assert "[HW_8105]" in service.run("rules", "deploy", "new.yaml", yaml=strict).err
    assert service.run("rules", "diff", "new.yaml", yaml=strict).code == 0
    forced = service.run("rules", "deploy", "new.yaml", "--force")
    assert forced.code == 0, forced.err
    assert service.grant in forced.err
    service.deployment.yaml = BOTH
    service.source.execute("insert into todos values ('2'); insert into notes values ('2')")
    assert service.rows() == {NOTE, ("notes", "2")}
    service.source.execute(service.grant)
    wait_until(lambda: {TODO, ("todos", "2")} <= service.rows(), "the rows of the table")


def test_check_and_diff_name_statements(service: Service) -> None:
    service.deployment.start()
    found = json.loads(service.run("rules", "check", "new.yaml", "--schema", "--json").out)
    (warning,) = [each for each in found["warnings"] if each["code"] == "HW_R307"]
    assert warning["suggestion"] == f"run {PUBLISH}; {service.grant}"
    assert warning["place"]["line"] == 4
    assert service.run("source", "schema", "-o", "schema.json").code == 0
    from_file = json.loads(service.run("rules", "check", "new.yaml", "--schema-file", "schema.json", "--json").out)
    assert {**from_file, "note": found["note"]} == found
    diff = service.run("rules", "diff", "new.yaml")
    assert PUBLISH in diff.out
    assert service.grant in diff.out
    (told,) = json.loads(service.run("rules", "diff", "new.yaml", "--json").out)["unsent"]
    assert told["suggestion"] == warning["suggestion"]


def test_config_file_serves_the_rest(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    service.deployment.yaml = BOTH
    settings = service.deployment.settings
    with caplog.at_level(logging.WARNING):
        wait_for_source(settings, plan_of(BOTH).tables(), threading.Event(), 5.0)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message for message in warned if PUBLISH in message]
    assert [message for message in warned if service.grant in message]

    caplog.set_level(logging.INFO)
    caplog.clear()
    service.deployment.intervals = WATCHED
    service.deployment.start()
    assert service.rows() == {NOTE}
    wait_until(lambda: PUBLISH in caplog.text, "the replicator to name the statement")
    status = service.run("source", "status")
    assert status.code == 1
    assert PUBLISH in status.out
    assert service.grant in status.out

    service.source.execute(f"{PUBLISH}; {service.grant}")
    wait_until(lambda: service.rows() == {NOTE, TODO}, "the rows of the table")
    wait_until(lambda: "resolved: [HW_2030]" in caplog.text, "the replicator to say that it is over")
    assert service.run("source", "status").code == 0


def test_revoked_table_keeps_rows(service: Service) -> None:
    service.source.execute(f"{PUBLISH}; {service.grant}")
    service.deployment.yaml = BOTH
    service.deployment.start()
    assert service.rows() == {NOTE, TODO}
    service.deployment.stop()
    service.source.execute(f"revoke select on todos from {service.role}")
    service.deployment.start()
    service.source.execute("insert into todos values ('2')")
    assert service.rows() == {NOTE, TODO, ("todos", "2")}


def test_statement_gives_identity_first(service: Service) -> None:
    service.source.execute("alter table todos drop constraint todos_pkey")
    refused = service.run("rules", "check", "new.yaml", "--schema")
    identity = 'ALTER TABLE "public"."todos" REPLICA IDENTITY FULL'
    assert f"{identity}; {PUBLISH}" in refused.err


PRIVATE = HEAD + "  notes: {auto_subscribe: true, query: SELECT id FROM notes WHERE NOT private}\n"


def test_missing_column_gives_no_rows(service: Service) -> None:
    service.deployment.intervals = WATCHED
    service.deployment.start()
    refused = service.run("rules", "deploy", "new.yaml", yaml=PRIVATE)
    assert refused.code == 1
    assert "error [HW_R302]: no column `private` in `notes`" in refused.err
    assert "--allow-missing" in refused.err
    assert len(json.loads(service.run("rules", "versions", "--json").out)) == 1
    assert service.rows() == {NOTE}

    deployed = service.run("rules", "deploy", "new.yaml", "--allow-missing", yaml=PRIVATE)
    assert deployed.code == 0, deployed.err
    service.deployment.yaml = PRIVATE
    assert service.rows() == set()
    lacking = "[HW_R302] public.notes has no published column private"
    status = service.run("source", "status")
    assert (status.code, lacking in status.out) == (1, True)

    service.source.execute("alter table notes add column private bool")
    wait_until(lambda: service.rows() == {NOTE}, "the rows by the column that was added")
    assert lacking not in service.run("source", "status").out
    service.source.execute("insert into notes values ('2', true), ('3', false)")
    assert service.rows() == {NOTE, ("notes", "3")}

    service.source.execute("alter table notes rename private to hidden; insert into notes values ('4', true)")
    wait_until(lambda: service.rows() == set(), "the rows to go with the column that decides")
    wait_until(lambda: "HW_R302" in str(service.deployment.health()), "the finding")
    service.source.execute("alter table notes rename hidden to private")
    wait_until(lambda: service.rows() == {NOTE, ("notes", "3")}, "the rows by the column that is back")
