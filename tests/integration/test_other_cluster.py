"""The source is another cluster than before, as after a move to other hardware, a major upgrade or a dump: devices get
only what differs, and a cluster that seems to be another app's is not followed until somebody says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from headwater.bulk.contract import CompareOutcome
from headwater.cli.config import ServiceConfig, load_config
from headwater.cli.source.move import move as source_move
from headwater.cli.source.status import show_status
from headwater.config import ConfigSource
from headwater.embedded.postgres import EmbeddedPostgres, PostgresBinaries, all_binaries
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn
from headwater.pipeline.jobs import BulkJobs
from headwater.replication.moved_source import DatabaseIdentity
from headwater.replication.requests import RequestKind
from headwater.source.slot import system_identity
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.versions import VersionState
from headwater.storage.sql.writer import StoreWriter
from tests.integration.standby import upgraded
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import FAST, SourceDb, program_of
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

TABLES = ["notes", "keyless", "whole", "moods", "parts", "shrunk", "sums", "pairs"]
RULES = auto_streams(all=[f"SELECT * FROM {table}" for table in TABLES])
SHOWN = {f"public.{table}": "true" for table in TABLES}

SCHEMA = """
create type mood as enum ('sad', 'happy');
create domain amount as int check (value < 1000);
create type place as (street text, number amount);
create table notes (id text primary key, body text, mood mood, size amount, moods mood[], place place);
create table keyless (id text, mood mood);
create table whole (id text, mood mood, body text);
alter table whole replica identity full;
create table moods (mood mood primary key, id text);
create table parts (id text primary key, n int) partition by hash (id);
create table parts_0 partition of parts for values with (modulus 2, remainder 0);
create table parts_1 partition of parts for values with (modulus 2, remainder 1);
{shrunk}
create table sums (id text primary key, n int, twice int generated always as (n * 2) stored);
create table pairs (a int, b text, id text, primary key (a, b));
"""
BEFORE = "create table shrunk (id text primary key, gone int, body text); alter table shrunk drop column gone;"
AFTER = "create table shrunk (id text primary key, body text);"
"""As a dump makes it again: its columns have other numbers."""
ROWS = """
insert into notes select i::text, 'x' || i, 'sad', i, '{sad,happy}', row('s', i)::place from generate_series(1, 100) i;
insert into keyless select (i % 30)::text, 'happy' from generate_series(1, 40) i;
insert into whole select (i % 30)::text, 'happy', repeat('long', 3000) || (i % 30) from generate_series(1, 40) i;
insert into moods values ('sad', '1'), ('happy', '2');
insert into parts select i::text, i from generate_series(1, 40) i;
insert into shrunk select i::text, 'x' from generate_series(1, 40) i;
insert into sums select i::text, i from generate_series(1, 40) i;
insert into pairs select i, 'b' || i, i::text from generate_series(1, 40) i;
"""
PUBLISH = """
create publication headwater for table notes, keyless, whole, moods, parts, shrunk, sums, pairs
  with (publish_via_partition_root)
"""


def schema(shrunk: str) -> str:
    return SCHEMA.format(shrunk=shrunk)


@pytest.fixture
def old(postgres_with: Callable[..., EmbeddedPostgres]) -> SourceDb:
    source = SourceDb(postgres_with(), "postgres")
    source.execute(schema(BEFORE) + ROWS + PUBLISH)
    return source


@pytest.fixture
def new(postgres_binaries: PostgresBinaries, tmp_path: Path) -> Iterator[SourceDb]:
    """A server of its own `initdb`, which is another cluster to Postgres, without any table."""
    with EmbeddedPostgres(tmp_path / "new", postgres_binaries, FAST) as server:
        source = SourceDb(server, "postgres")
        source.execute("create table shifts (oids int); create type all_oids as enum ('x')")
        yield source
        source.connection.close()


@pytest.fixture(params=["embedded", pytest.param("postgres", marks=pytest.mark.long)])
def deployment(
    request: pytest.FixtureRequest,
    old: SourceDb,
    bulk: BulkJobs,
    tmp_path: Path,
    on_storage: Callable[[], PostgresAddress],
) -> Iterator[Deployment]:
    """The service on the old cluster, by either store."""
    storage = on_storage() if request.param == "postgres" else None
    deployment = Deployment(old, tmp_path / "store", RULES, bulk, storage=storage)
    yield deployment.start()
    deployment.close()
    for source in {id(s): s for s in (old, deployment.source)}.values():
        source.connection.close()


def move(deployment: Deployment, new: SourceDb, *, follows: bool = True) -> None:
    """The service's connection leads to the new cluster from now on, and nothing else was done."""
    deployment.stop()
    deployment.source = new
    deployment.start(publish=follows)


def right(deployment: Deployment, device: Device) -> bool:
    return settled(deployment) and device.rows() == published_rows(deployment.source, SHOWN)


def cluster(source: SourceDb) -> str:
    return system_identity(source.connection).system_id


def refused(deployment: Deployment) -> str:
    """Wait until the service says that it does not follow the database, and why not."""

    def cause() -> str:
        found = deployment.health().cause
        return found.what if found is not None and found.code == "HW_5006" else ""

    wait_until(lambda: bool(cause()), "the refusal")
    return cause()


def accept(deployment: Deployment) -> None:
    with deployment.store() as store:
        store.submit(RequestKind.MOVE, "default", DatabaseIdentity.of(deployment.source.connection).encoded())


def test_nothing_equal_is_sent(deployment: Deployment, old: SourceDb, new: SourceDb) -> None:
    assert cluster(old) != cluster(new)
    device = Device(deployment)
    assert device.rows() == published_rows(old, SHOWN)
    before, buckets = deployment.op_count(), deployment.buckets("a").keys()
    new.execute(schema(AFTER) + ROWS + PUBLISH)
    move(deployment, new)
    wait_until(lambda: right(deployment, device), "the new cluster's rows")
    assert deployment.op_count() == before
    assert deployment.buckets("a").keys() == buckets
    new.execute("update notes set body = 'live', mood = 'happy' where id = '7'; delete from whole where id = '7'")
    new.execute("insert into keyless values ('new', 'sad'); update parts set n = -1 where id = '3'")
    assert deployment.op_count() == before + 1 + 2 + 1 + 1
    assert right(deployment, device)
    assert deployment.kinds().count("snapshot") == 1
    deployment.close()
    assert deployment.problems() == []


def test_stored_values_keep_their_types(deployment: Deployment, new: SourceDb) -> None:
    """Rows that were not written again since are shown as before when a deploy evaluates them anew."""
    new.execute("create domain amount2 as text; create type odd as (a int)")
    new.execute(schema(AFTER) + ROWS + PUBLISH)
    move(deployment, new)
    wait_until(lambda: settled(deployment), "the new cluster's rows")
    assert (
        deployment.redeploy(auto_streams(sizes="SELECT id, size, moods, place FROM notes WHERE body != 'y'")).state
        is VersionState.ACTIVE
    )
    shown = deployment.rows("a")["notes", "7"]
    assert shown == {"id": "7", "size": 7, "moods": '["sad","happy"]', "place": '{"street":"s","number":7}'}


OTHER_APP = """
create table notes (id text primary key, body text);
create table others (id text primary key);
insert into notes select i::text, 'of somebody else' from generate_series(1, 100) i;
create publication headwater for all tables
"""
OTHER_TENANT = ROWS.replace("'x' || i", "'y' || i")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (OTHER_APP, "public.keyless is not there"),
        (schema(AFTER) + ROWS.replace("(1, 100)", "(201, 300)") + PUBLISH, "of 100 rows of public.notes, 100 are not"),
        (schema(AFTER) + OTHER_TENANT + PUBLISH, "of 100 rows of public.notes, 100 have other values"),
        (schema(AFTER) + PUBLISH, "of 100 rows of public.notes, 100 are not there"),
        (schema(AFTER) + ROWS + PUBLISH.replace("notes, ", ""), "public.notes is not published"),
    ],
    ids=["app", "keys", "tenant", "empty", "unpublished"],
)
def test_database_of_other_data_is_refused(
    deployment: Deployment, old: SourceDb, new: SourceDb, made: str, why: str
) -> None:
    device, before = Device(deployment), deployment.op_count()
    shown = device.rows()
    new.execute(made)
    move(deployment, new, follows=False)
    assert why in refused(deployment)
    assert deployment.op_count_now() == before
    deployment.stop()
    deployment.source = old
    deployment.start()
    old.execute("update notes set body = 'on' where id = '1'")
    assert deployment.op_count() == before + 1, "it is followed on where it was left"
    assert device.rows() == published_rows(old, SHOWN) != shown


def test_database_that_can_not_be_looked_into_is_refused(deployment: Deployment, new: SourceDb) -> None:
    """Until it can: it might be anybody's."""
    device, before = Device(deployment), deployment.op_count()
    new.execute(schema(AFTER) + ROWS + PUBLISH)
    with psycopg.connect(new.dsn) as another:
        another.execute("lock table notes, pairs in access exclusive mode")
        move(deployment, new, follows=False)
        assert "public.notes can't be looked into now: it is locked" in refused(deployment)
        assert deployment.op_count_now() == before
    wait_until(lambda: right(deployment, device), "the same data, once it can be looked into")


def test_other_database_of_the_same_cluster_is_refused(deployment: Deployment, old: SourceDb) -> None:
    device, before = Device(deployment), deployment.op_count()
    old.execute("create database other")
    other = SourceDb(old.server, "other")
    try:
        other.execute(OTHER_APP)
        move(deployment, other, follows=False)
        assert "is not there" in refused(deployment)
        assert deployment.op_count_now() == before
        accept(deployment)
        wait_until(lambda: right(deployment, device), "the other data, once it is said to be right")
    finally:
        deployment.close()
        other.connection.close()


def test_accepted_differences_are_sent(deployment: Deployment, new: SourceDb) -> None:
    device = Device(deployment)
    buckets, before = deployment.buckets("a").keys(), deployment.op_count()
    new.execute(schema(AFTER) + OTHER_TENANT + PUBLISH)
    move(deployment, new, follows=False)
    refused(deployment)
    accept(deployment)
    wait_until(lambda: right(deployment, device), "the rows of the other tenant")
    assert deployment.op_count() == before + 100, "only what differs"
    assert deployment.buckets("a").keys() == buckets
    with deployment.store() as store:
        assert store.open_requests("default") == []


def test_waiting_write_is_acknowledged(deployment: Deployment, new: SourceDb) -> None:
    """Positions of the old cluster's log say nothing in the new one's, which is shorter."""
    deployment.source.execute("select pg_switch_wal(); create table filler (id int); select pg_switch_wal()")
    ((position,),) = deployment.source.fetch("select pg_current_wal_insert_lsn() - '0/0' + 4294967296")
    deployment.reader.create_write_checkpoint(["user/device"], {"default": Lsn(int(position))})
    new.execute(schema(AFTER) + ROWS + PUBLISH)
    move(deployment, new)

    def visible() -> bool:
        deployment.caught_up()
        write, newest = deployment.reader.write_checkpoint("user/device"), deployment.reader.newest()
        assert write is not None
        assert newest is not None
        return newest.checkpoint.lsns["default"] >= write.lsns["default"]

    wait_until(visible, "the write to be acknowledged")


@pytest.mark.parametrize("back", [False, True], ids=["again", "back"])
def test_killed_while_it_takes_over(
    deployment: Deployment, old: SourceDb, new: SourceDb, back: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the new cluster's oids in the store, and its position not yet: also if somebody then goes back."""
    device, before = Device(deployment), deployment.op_count()
    new.execute(schema(AFTER) + ROWS + PUBLISH)
    replace_layouts = StoreWriter.replace_layouts

    def killed(store: StoreWriter, *arguments: Any) -> None:
        replace_layouts(store, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "replace_layouts", killed)
        with pytest.raises(KeyboardInterrupt):
            move(deployment, new)
    deployment.stop()
    deployment.source = old if back else new
    deployment.start()
    wait_until(lambda: right(deployment, device), "the rows")
    assert deployment.op_count() == before


def test_pg_upgrade(deployment: Deployment, old: SourceDb, tmp_path: Path) -> None:
    """Postgres 17 and newer bring the slot along. It is made again: nothing says that it goes on where we read to."""
    programs = program_of(old.server, "pg_resetwal").parent
    able = [b for b in all_binaries() if b.major >= old.server.binaries.major and (b.bin_dir / "pg_upgrade").exists()]
    if not able:
        pytest.skip("needs pg_upgrade")
    device, before = Device(deployment), deployment.op_count()
    deployment.stop_and_let_go()
    old.connection.close()
    with upgraded(old.server, programs, tmp_path / "upgraded", max(able, key=lambda b: b.major)) as server:
        deployment.source = SourceDb(server, "postgres")
        assert cluster(deployment.source) != deployment_cluster(deployment)
        brought = int(old.server.binaries.major >= 17)
        assert deployment.source.fetch("select count(*) from pg_replication_slots") == [(brought,)]
        deployment.start()
        wait_until(lambda: right(deployment, device), "the same rows")
        assert deployment.op_count() == before
        deployment.source.execute("update notes set body = 'live' where id = '7'")
        assert deployment.op_count() == before + 1
        assert right(deployment, device)
        assert deployment.source.fetch("select count(*) from pg_replication_slots") == [(1,)]
        deployment.close()
        deployment.source.connection.close()


def deployment_cluster(deployment: Deployment) -> str:
    """The cluster that the store was followed in."""
    with deployment.store() as store:
        state = store.source_state("default")
    assert state is not None
    return state.system_id


Move = Callable[..., tuple[int, str]]


@pytest.fixture
def config(deployment: Deployment, tmp_path: Path) -> Callable[[], ServiceConfig]:
    """The service config of the deployment as it is now."""

    def load() -> ServiceConfig:
        store = deployment.address
        storage = f"{{type: sqlite, path: '{deployment.directory}'}}"
        if isinstance(store, PostgresAddress):
            given = conninfo_to_dict(store.conninfo)
            uri = f"postgresql://postgres@127.0.0.1:{given['port']}/{given['dbname']}"
            storage = f"{{type: postgresql, uri: '{uri}', sslmode: disable, schema: {store.schema}}}"
        path = tmp_path / "headwater.yaml"
        path.write_text(
            f"replication: {{connections: [{{uri: '{deployment.source.uri}', sslmode: disable}}]}}\n"
            f"storage: {storage}\nclient_auth: {{supabase_jwt_secret: {'s' * 40}}}\n"
        )
        return load_config(ConfigSource(path=path), {}, tmp_path)

    return load


@pytest.fixture
def command(config: Callable[[], ServiceConfig], bulk: BulkJobs, capsys: pytest.CaptureFixture[str]) -> Move:
    """`headwater source move default …`: its exit code and output."""

    def run(to: SourceDb | None = None, *, check: bool = False, accept_differences: bool = False) -> tuple[int, str]:
        address = None if to is None else to.uri
        capsys.readouterr()
        code = source_move(config(), "default", address, bulk, check=check, accept_differences=accept_differences)
        out, err = capsys.readouterr()
        return code, out + err

    return run


def test_move_by_command(deployment: Deployment, old: SourceDb, new: SourceDb, command: Move) -> None:
    """As an operator does it: ahead of time, again when the data is there, then the config."""
    device, before = Device(deployment), deployment.op_count()
    new.execute(schema(AFTER))
    code, told = command(new, check=True)
    assert code == 1
    assert "[PSYNC_S1141]" in told, "the publication is missing"
    assert 'CREATE PUBLICATION "headwater" FOR TABLE' in told, "the way out is shown"
    new.execute(PUBLISH)
    code, told = command(new, check=True)
    assert code == 1
    assert "public.notes: 100 of 100 rows differ" in told
    new.execute(ROWS + "; update notes set body = 'differs' where id = '1'")
    code, told = command(new, check=True)
    assert code == 0
    assert "compared 8 tables of 342 rows: 1 differ" in told
    assert "1 session of postgres" in told, "somebody is connected to the old one"
    with deployment.store() as store:
        assert store.open_requests("default") == [], "a check changes nothing"
    for _ in range(2):
        code, told = command(new)
        assert code == 0
        assert f"port: {new.server.port}" in told
        assert "pg_drop_replication_slot('hw_" in told
    old.execute("update notes set body = 'still followed' where id = '2'")
    deployment.caught_up()
    assert device.rows()["notes", "2"]["body"] == "still followed"
    assert deployment.ask("audit")["state"] == "done", "what is allowed keeps nothing waiting"
    new.execute("update notes set body = 'still followed' where id = '2'")
    move(deployment, new)
    wait_until(lambda: right(deployment, device), "the new cluster's rows")
    assert deployment.op_count() == before + 2, "one on the old cluster, and the row that differs"
    with deployment.store() as store:
        assert store.open_requests("default") == []


def test_differences_are_accepted_by_command(
    deployment: Deployment,
    new: SourceDb,
    command: Move,
    config: Callable[[], ServiceConfig],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The config leads there already, and the service refuses."""
    device = Device(deployment)
    new.execute(schema(AFTER) + OTHER_TENANT + PUBLISH)
    move(deployment, new, follows=False)
    refused(deployment)
    assert show_status(config(), as_json=False) == 1
    told = capsys.readouterr().out
    assert "cause     [HW_5006] the source is another database now" in told
    assert "problem   [HW_2040] this is another cluster than the one in which the store followed the slot" in told
    code, told = command()
    assert code == 1
    assert "not allowed" in told
    code, told = command(accept_differences=True)
    assert code == 0
    wait_until(lambda: right(deployment, device), "the accepted rows")


def test_nothing_to_move(old: SourceDb, command: Move) -> None:
    with pytest.raises(HeadwaterError, match="HW_8203"):
        command(old)


def test_writes_meanwhile_are_no_differences(
    deployment: Deployment, old: SourceDb, new: SourceDb, command: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    new.execute(schema(AFTER) + ROWS + PUBLISH)
    compare = BulkJobs.compare

    def later(*arguments: Any) -> CompareOutcome:
        """The rows that differ arrive once they were found."""
        new.execute("update notes set body = 'a' where id < '2'; insert into parts values ('late', 1)")
        found = compare(*arguments)
        old.execute("update notes set body = 'a' where id < '2'; insert into parts values ('late', 1)")
        deployment.caught_up()
        return found

    monkeypatch.setattr(BulkJobs, "compare", later)
    code, told = command(new, check=True)
    assert code == 0
    assert "none differ" in told
