"""`headwater migrate check` says what of a deployment is taken over, what is ignored, and what has to change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headwater.cli.config import load_config
from headwater.config import ConfigSource
from headwater.embedded.postgres import EmbeddedPostgres
from headwater.source.connect import SourceSettings
from headwater.source.slot import slot_name
from headwater.storage.open import open_store
from tests.support.command import Outcome, headwater_here
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import free_port

SERVICE = """
replication:
  connections:
    - type: postgresql
      uri: !env PS_SOURCE_URI
      sslmode: disable
storage:
  type: {storage}
  uri: {storage}://localhost:5432/powersync_storage
  username: storage
  sslmode: disable
  max_pool_size: 4
port: !env PS_PORT::number
sync_config:
  path: sync_config.yaml
client_auth:
  jwks_uri: http://backend:6060/api/auth/keys
  audience: [powersync-dev, powersync]
api:
  tokens: [one-of-our-operators]
"""
RULES = """
bucket_definitions:
  user_lists:
    parameters: SELECT id AS list_id FROM lists WHERE owner_id = request.user_id()
    data:
      - SELECT * FROM lists WHERE id = bucket.list_id
"""
AT = "postgresql://postgres@127.0.0.1/app"
HEADINGS = ("Taken over as it is", "Ignored, or read with a warning", "Has to change", "Good to know")

Check = Callable[..., tuple[Outcome, dict[str, str]]]


@pytest.fixture
def check(source_db: SourceDb, tmp_path: Path) -> Check:
    """`check(rules, service, storage=…, uri=…)`: how the command ended, and what it said under each heading."""

    def run(
        rules: str = RULES, service: str = SERVICE, *, storage: str = "postgresql", uri: str = "", more: str = ""
    ) -> tuple[Outcome, dict[str, str]]:
        (tmp_path / "powersync.yaml").write_text(service.format(storage=storage) + more)
        (tmp_path / "sync_config.yaml").write_text(rules)
        done = headwater_here("migrate", "check", cwd=tmp_path, PS_SOURCE_URI=uri or source_db.uri, PS_PORT="8080")
        parts = re.split(rf"^({'|'.join(HEADINGS)}):\n", done.out, flags=re.MULTILINE)
        return done, {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}

    return run


@pytest.fixture
def former(source_db: SourceDb) -> Iterator[None]:
    """A database that the published service replicates."""
    source_db.execute("create table lists (id text primary key, owner_id text, name text)")
    source_db.execute("create publication powersync for all tables")
    source_db.execute("select pg_create_logical_replication_slot('powersync_1_ab12', 'pgoutput')")
    yield
    source_db.execute("select pg_drop_replication_slot('powersync_1_ab12')")


def test_database_of_powersync(check: Check, former: None, source_db: SourceDb) -> None:
    done, told = check()
    assert (done.code, set(told)) == (1, set(HEADINGS)), done
    assert "replication.connections[0].uri, replication.connections[0].sslmode" in told["Taken over as it is"]
    assert "client_auth.jwks_uri, client_auth.audience, api.tokens" in told["Taken over as it is"]
    assert "sync_config.yaml: streams and bucket definitions user_lists" in told["Taken over as it is"]
    assert "storage.max_pool_size: has no effect here" in told["Ignored, or read with a warning"]
    assert "set publications: [powersync] in the connection" in told["Has to change"]
    assert "1 of these have to change" in told["Good to know"]
    assert "the slot powersync_1_ab12 is read by nobody" in told["Good to know"]
    assert "that of the old service is not read" in told["Good to know"]
    reader = f"{source_db.name}_reader"
    source_db.execute(f"create role {reader} login replication")
    _, told = check(uri=f"postgresql://{reader}@127.0.0.1:{source_db.server.port}/{source_db.name}")
    source_db.execute(f"drop role {reader}")
    assert told["Has to change"].count("GRANT SELECT ON") == 1
    source_db.execute("create publication headwater for all tables")
    done, told = check()
    assert (done.code, "Has to change" in told) == (0, False), done
    assert "settings, rights and the publication headwater" in told["Taken over as it is"]
    assert source_db.fetch("select slot_name from pg_replication_slots where database = current_database()") == [
        ("powersync_1_ab12",)
    ]


def test_all_changes_are_named_at_once(check: Check, former: None) -> None:
    rules = RULES.replace("request.user_id()", "lowr(request.user_id())")
    done, told = check(rules, storage="mongodb", more="telemetry: {internal_service_endpoint: 'https://example.com'}\n")
    assert done.code == 1
    assert "storage.type" in told["Has to change"]
    assert "use the embedded store" in told["Has to change"]
    assert "line 4: [HW_R104] unknown function `lowr`" in told["Has to change"]
    assert "publications: [powersync]" in told["Has to change"]
    assert "telemetry.internal_service_endpoint" in told["Ignored, or read with a warning"]
    assert "storage." not in told["Taken over as it is"]
    assert "settings and the publication powersync" in told["Taken over as it is"]
    assert "rights" not in told["Taken over as it is"], "the tables are not known"
    assert "once there are rules that can be read" in told["Good to know"]


def test_example_admin_token(check: Check, former: None) -> None:
    _, told = check(service=SERVICE.replace("one-of-our-operators", "use_a_better_token_in_production"))
    assert "api.tokens: is the secret of an example" in told["Has to change"]


def test_misspelt_column(check: Check, former: None) -> None:
    _, told = check(RULES.replace("owner_id =", "ownr_id ="))
    assert re.search(r"sync_config.yaml, line 4: .*ownr_id", told["Has to change"])


def test_source_unreachable_or_unfit(check: Check, postgres_with: Callable[..., EmbeddedPostgres]) -> None:
    _, told = check(uri=f"postgresql://postgres@127.0.0.1:{free_port()}/app")
    assert "[HW_2001]" in told["Has to change"]
    server = postgres_with(wal_level="replica")
    _, told = check(uri=f"postgresql://postgres@127.0.0.1:{server.port}/postgres")
    assert "ALTER SYSTEM SET wal_level = logical" in told["Has to change"]
    _, told = check(uri="mongodb://localhost/app")
    assert "replication.connections[0].uri: must begin with postgresql://" in told["Has to change"]
    assert "127.0.0.1" not in told["Taken over as it is"]


def test_missing_variables_are_named(tmp_path: Path) -> None:
    (tmp_path / "powersync.yaml").write_text(SERVICE.format(storage="postgresql"))
    done = headwater_here("migrate", "check", cwd=tmp_path)
    assert (done.code, "PS_SOURCE_URI is not set" in done.err, "PS_PORT is not set" in done.err) == (1, True, True)


def test_store_error_hides_no_token_error(check: Check, former: None) -> None:
    without = SERVICE.replace("  audience: [powersync-dev, powersync]\n", "")
    _, told = check(service=without, storage="mongodb")
    assert "client_auth.audience: is empty, so every token is refused" in told["Ignored, or read with a warning"]


def test_rules_in_service_config(check: Check, former: None) -> None:
    _, told = check(service=SERVICE.replace("path: sync_config.yaml", "content: '['"))
    assert "-> save it as a file, and see `headwater rules check FILE`" in told["Has to change"]


def test_old_slots_are_named(check: Check, former: None, source_db: SourceDb) -> None:
    settings = SourceSettings("127.0.0.1", source_db.name, "postgres", slot_prefix="powersync_")
    theirs, ours = "shop_1_cd34", slot_name(settings)
    for name in (theirs, ours):
        source_db.execute(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    try:
        _, told = check(service=SERVICE.replace("uri: !env", "slot_name_prefix: powersync_\n      uri: !env", 1))
        named = re.findall(r"the slot (\w+) ", told["Good to know"])
        assert named == ["powersync_1_ab12"]
        _, told = check(service=SERVICE.replace("uri: !env", "slot_name_prefix: shop_\n      uri: !env", 1))
        assert {"powersync_1_ab12", theirs} <= {*re.findall(r"the slot (\w+) ", told["Good to know"])}
        assert f"SELECT pg_drop_replication_slot('{theirs}')" in told["Good to know"]
    finally:
        for name in (theirs, ours):
            source_db.execute(f"select pg_drop_replication_slot('{name}')")


def test_own_slot_is_not_named(check: Check, former: None, tmp_path: Path) -> None:
    kept = re.sub(r"storage:\n(  .*\n)+", "storage: {{type: sqlite, path: store}}\n", SERVICE)
    _, told = check(service=kept)
    assert "the slot powersync_1_ab12" in told["Good to know"]
    assert not (tmp_path / "store").exists(), "nothing is changed"
    config = load_config(ConfigSource(), {"PS_SOURCE_URI": AT, "PS_PORT": "0"}, tmp_path)
    store = open_store(config.storage).open_writer()
    try:
        lease = store.acquire("default", "test", 60.0)
        store.set_meta(lease, "slot default", json.dumps({"name": "powersync_1_ab12", "prefix": "powersync_"}))
        store.release(lease)
    finally:
        store.close()
    _, told = check(service=kept)
    assert "powersync_1_ab12" not in told["Good to know"]


@pytest.mark.long
def test_probes_and_metrics(check: Check, former: None) -> None:
    more = "healthcheck: {probes: {use_http: true}}\ntelemetry: {prometheus_port: 9464}\n"
    _, told = check(more=more)
    assert "a replicator alone (start -r sync) has no port for them" in told["Good to know"]
    assert "set metrics: {host: 0.0.0.0}" in told["Good to know"]
    _, told = check(more=f"{more}metrics: {{host: 0.0.0.0}}\n")
    assert "set metrics" not in told["Good to know"]
