"""Versions that edit the query of a computed table: who sees which rows, and when."""

from __future__ import annotations

import orjson
import pytest

from headwater.api.admin.route import AdminSettings
from headwater.replication.versions import part_of
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater_rules.versions import definitions_of
from tests.support.computed_truth import refresh_state
from tests.support.fix_admin import OPERATOR, running_admin
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_sources import NewSources
from tests.support.model_device import chunks_of, parse_ops
from tests.support.waiting import wait_until

NOTES = """
create table notes (id int primary key, owner text, secret bool, text text);
insert into notes select i, 'u' || i % 3, i % 2 = 0, 'text ' || i from generate_series(1, 20) i;
"""
ALL = "SELECT id, owner, text FROM notes"
PUBLIC = "SELECT id, owner, text FROM notes WHERE NOT secret"
MINE = 'mine: {auto_subscribe: true, query: "SELECT * FROM shown WHERE owner = auth.user_id()"}'
ANYBODY = 'anybody: {auto_subscribe: true, query: "SELECT id, text FROM shown AS anybody"}'


def config(query: str, *streams: str, key: str = "id") -> str:
    lines = "".join(f"\n  {stream}" for stream in streams)
    table = f"shown: {{query: {orjson.dumps(query).decode()}, key: [{key}], refresh: {{every: 1d, least: 0s}}}}"
    return f"config: {{edition: 3}}\ntables:\n  {table}\nstreams:{lines}\n"


def numbers(deployment: Deployment, table: str, user: str = "u1") -> set[int]:
    return {int(row_id) for name, row_id in deployment.rows(user) if name == table}


def of_query(source: SourceDb, query: str, user: str = "") -> set[int]:
    return {number for number, owner, _ in source.fetch(query) if owner == user or not user}


def refused(deployment: Deployment, yaml: str) -> ConfigVersion:
    """Deploy what is not to be served. Returns the version."""
    before = deployment.yaml
    version = deployment.redeploy(yaml)
    deployment.yaml = before
    assert version.state is VersionState.FAILED
    return version


@pytest.fixture
def notes(source_db: SourceDb) -> SourceDb:
    source_db.execute(NOTES)
    return source_db


def started(deployment: Deployment) -> Deployment:
    deployment.start()
    wait_until(lambda: refresh_state(deployment, "shown").at > 0, "the table to be computed", 30)
    return deployment


def test_new_stream_has_no_row_of_former_query(deploy: Deploy, notes: SourceDb) -> None:
    deployment = started(deploy(config(ALL, MINE)))
    assert numbers(deployment, "shown") == of_query(notes, ALL, "u1")
    deployment.redeploy(config(PUBLIC, MINE, ANYBODY))
    assert numbers(deployment, "anybody") == of_query(notes, PUBLIC)
    assert numbers(deployment, "shown") == of_query(notes, PUBLIC, "u1")
    (bucket,) = [name for name in deployment.buckets("u1") if "anybody" in name]
    ops = [op for chunk in chunks_of(deployment.reader, bucket, 0, 1 << 62) for op in parse_ops(chunk.ops)]
    assert {int(str(op["object_id"])) for op in ops if "object_id" in op} == of_query(
        notes, PUBLIC
    )  # it never had others


def test_failing_query_is_not_served_to_new_stream(deploy: Deploy, notes: SourceDb) -> None:
    deployment = started(deploy(config(ALL, MINE)))
    version = refused(deployment, config(PUBLIC.replace("secret", "secrets"), MINE, ANYBODY))
    assert "HW_2701" in version.note
    assert "shown" in version.note
    assert 'column "secrets" does not exist' in version.note
    assert numbers(deployment, "shown") == of_query(notes, ALL, "u1")
    assert numbers(deployment, "anybody") == set()
    notes.execute("insert into notes values (101, 'u1', false, 'new')")
    notes.execute("select pg_logical_emit_message(true, 'headwater', 'refresh shown')")
    wait_until(lambda: 101 in numbers(deployment, "shown"), "the former query to go on", 30)


def test_failing_query_with_another_key_keeps_rows(deploy: Deploy, notes: SourceDb) -> None:
    deployment = started(deploy(config(ALL, MINE)))
    version = refused(deployment, config(ALL, MINE, key="owner"))
    assert "HW_2703" in version.note
    assert numbers(deployment, "shown") == of_query(notes, ALL, "u1")


def test_edited_query_and_another_audience_are_refused_together(deploy: Deploy, notes: SourceDb) -> None:
    deployment = started(deploy(config(PUBLIC, ANYBODY)))
    version = refused(deployment, config(ALL, MINE))
    assert "HW_2710" in version.note
    assert "shown" in version.note
    assert numbers(deployment, "anybody") == of_query(notes, PUBLIC)
    deployment.redeploy(config(PUBLIC, MINE))
    deployment.redeploy(config(ALL, MINE))
    assert numbers(deployment, "shown") == of_query(notes, ALL, "u1")


def test_other_claim_of_same_stream_is_another_audience(deploy: Deploy, notes: SourceDb) -> None:
    """The bucket definition is the same one: only requests come to its buckets by another way."""
    deployment = started(deploy(config(PUBLIC, MINE)))
    by_claim = MINE.replace("auth.user_id()", "auth.parameter('boss')")
    assert "HW_2710" in refused(deployment, config(ALL, by_claim)).note


def test_stream_that_goes_sees_no_row_of_new_query(deploy: Deploy, notes: SourceDb) -> None:
    deployment = started(deploy(config(PUBLIC, MINE, ANYBODY)))
    before = deployment.yaml
    deployment.redeploy(config(ALL, MINE))
    wait_until(lambda: numbers(deployment, "shown") == of_query(notes, ALL, "u1"), "the new rows", 30)
    deployment.redeploy(before)  # and back
    assert numbers(deployment, "anybody") == of_query(notes, PUBLIC)
    assert numbers(deployment, "shown") == of_query(notes, PUBLIC, "u1")


def test_new_stream_waits_for_rows_of_failed_refresh(deploy: Deploy, notes: SourceDb) -> None:
    """The rows may be those of a version before the one that is served."""
    deployment = started(deploy(config(ALL, MINE, ANYBODY)))
    failing = "SELECT id, owner, text FROM notes WHERE 1 / (id - 1) > 0"
    deployment.redeploy(config(failing, MINE))
    wait_until(lambda: refresh_state(deployment, "shown").code == "HW_2701", "the refresh to fail", 30)
    more = 'more: {auto_subscribe: true, query: "SELECT id, text FROM shown AS more"}'
    assert "HW_2701" in refused(deployment, config(failing, MINE, more)).note


def test_lookup_decides_by_rows_of_new_query(deploy: Deploy, notes: SourceDb) -> None:
    notes.execute("create table files (id int primary key, owner text); insert into files values (1, 'u0'), (2, 'u1')")
    staff = "SELECT id, owner, text FROM notes WHERE owner = 'u1'"
    deployment = started(deploy(config(ALL, MINE)))
    files = (
        "files: {auto_subscribe: true,"
        " query: SELECT * FROM files WHERE owner IN (SELECT owner FROM shown WHERE owner = auth.user_id())}"
    )
    deployment.redeploy(config(staff, MINE, files))
    assert numbers(deployment, "files", "u0") == set()
    assert numbers(deployment, "files", "u1") == {2}


def test_version_waits_for_refresh_of_another_source(new_sources: NewSources) -> None:
    def both(query: str, more: str = "") -> str:
        return f"""
config: {{edition: 3}}
tables:
  shown: {{query: {orjson.dumps(query).decode()}, key: [id], source: b, refresh: {{every: 1d, least: 0s}}}}
streams:
  files: {{auto_subscribe: true, query: SELECT * FROM a.public.files}}
  mine: {{auto_subscribe: true, query: SELECT * FROM shown WHERE owner = auth.user_id()}}
{more}"""

    files = "create table files (id int primary key, name text); insert into files values (1, 'one');"
    sources = new_sources(both(ALL), {"a": files, "b": NOTES}).start()
    wait_until(lambda: len(sources.rows("u1")) == 8, "all rows", 30)
    sources["b"].source.execute("begin; lock notes in access exclusive mode")  # the refresh waits for it
    later = "  all_files: {auto_subscribe: true, query: SELECT id FROM a.public.files AS all_files}\n"
    yaml = both(PUBLIC, later)
    number = sources.deploy(yaml)
    needed = definitions_of(part_of(yaml, "a")).items()
    sources.wait_for(lambda store: needed <= store.complete_definitions("a").items(), "the other source")
    assert sources.state(number) is VersionState.PROCESSING
    sources["b"].source.execute("commit")
    sources.wait_for(lambda _: sources.state(number) is VersionState.ACTIVE, "the version to be served")
    shown = {int(number) for table, number in sources.rows("u1") if table == "shown"}
    assert shown == of_query(sources["b"].source, PUBLIC, "u1")


def test_query_that_fails_is_refused_before_it_is_deployed(deploy: Deploy, notes: SourceDb) -> None:
    deployment = started(deploy(config(ALL, MINE)))
    wrong = config(PUBLIC.replace("secret", "secrets"), MINE)
    with running_admin(AdminSettings((OPERATOR,), deployment.address, (deployment.settings,))) as admin:
        found = admin.post("/api/headwater/v1/validate", content=wrong)
        assert not found["valid"]
        (finding,) = found["findings"]
        assert finding["code"] == "HW_R310"
        assert 'column "secrets" does not exist' in finding["message"]
        (error,) = admin.post("/api/admin/v1/validate", sync_rules=wrong)["errors"]
        assert "HW_R310" in error["message"]
        refusal = admin.refusal("POST", "/api/headwater/v1/deploy", 422, json={"content": wrong})
        assert 'column "secrets" does not exist' in refusal["details"]
        assert admin.post("/api/headwater/v1/validate", content=config(PUBLIC, MINE))["valid"]
    with deployment.store() as store:
        assert len(store.versions()) == 1
