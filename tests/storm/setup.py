"""What a storm rages over: a source with its server, a store, and a replicator that can be ended in any way."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.oplog.lsn import parse_lsn
from headwater.pipeline.jobs import BulkJobs
from headwater.replication.status import ReplicationState
from headwater.source.catalog.published import published_tables
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.store import StoreBusyError, StoreUnreachableError
from headwater_rules.plan import shard_of, tag_of
from tests.storm.sources import ALONE, config_of
from tests.storm.tables import (
    CONFIG,
    CROWDED,
    CROWDED_QUERY,
    HEAVY_SIZES,
    KINDS,
    LEDGER,
    Published,
    Rows,
    Shown,
    Version,
    Versions,
    canonical,
    completed,
    select_rows,
    version_of,
)
from tests.storm.writers import connect_patiently
from tests.support.changed_source import known
from tests.support.command import command
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import config_of as config_of_service
from tests.support.fix_service import connection_to, free_port
from tests.support.processes import Running, start, wait_gone
from tests.support.waiting import wait_until

SETTLE_SECONDS = 600.0  # a Spark that was killed has to start again, perhaps several times


@dataclass
class StormSetup:
    """One source of a service. `host` is the replicator's process; without one it runs in this process, on a Spark that
    is warm. `stores` is the server of the store, where that is not embedded. `fellows` are the setups of all sources of
    the service, itself included, in the order of its config; they share a folder, a store, and perhaps a host."""

    server: EmbeddedPostgres
    folder: Path
    bulk: BulkJobs
    database: str
    stores: EmbeddedPostgres | None = None
    name: str = ALONE
    fellows: list[StormSetup] = field(default_factory=list, repr=False)
    source: SourceDb = field(init=False)
    deployment: Deployment = field(init=False)
    host: Running | None = None
    _hosts: int = 0

    def __post_init__(self) -> None:
        with psycopg.connect(self.server.dsn(), autocommit=True) as admin:
            admin.execute(f"create database {self.database}".encode())
        self.source = SourceDb(self.server, self.database)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.deployment = Deployment(
            self.source,
            self.folder / "store",
            CONFIG,
            self.bulk,
            tag=tag_of(self.name),
            shard=shard_of(self.name) or None,
            patience=SETTLE_SECONDS,
            slot_prefix="headwater_",
            storage=PostgresAddress(self.stores.dsn(), self.database, "the storm's storage") if self.stores else None,
        )

        self.fellows = [self]

    def introduce(self, fellows: list[StormSetup]) -> None:
        """Tell it of all sources of its service."""
        self.fellows = fellows
        self.deployment.yaml = config_of(tuple(each.name for each in fellows))
        self.deployment.peers = {each.name: tag_of(each.name) for each in fellows}

    def lay_out(self, *, many: int, heavy: bool) -> None:
        """Make the tables, one with so many rows and perhaps one with large ones, and publish them."""
        self.source.execute(
            f"create table {LEDGER} (id text primary key, at timestamptz default clock_timestamp());"
            " create sequence clock"
        )
        for kind in KINDS.values():
            self.source.execute(kind.create())
        ids = "lpad(i::text, greatest(2, length(i::text)), '0')"
        self.source.execute(
            f"insert into crowd (id, owner, n, body) select {ids}, 'u' || i % 2, i % 100, 'one of many'"
            f" from generate_series(0, {many - 1}) i"
        )
        for number, times in enumerate(HEAVY_SIZES if heavy else ()):
            self.source.execute(
                f"insert into heavy values ('{number:02}', 'u{number % 2}', 1, 'heavy', repeat(md5('1'), {times}),"
                f" '1:{times}')"
            )
        self.source.execute(
            f"create publication headwater for table {', '.join([LEDGER, *KINDS])}"
            " with (publish_via_partition_root = true)"
        )

    def reconnect(self) -> None:
        """A connection to the source that works, after the one there was may have been broken."""
        self.source.connection.close()
        self.source.connection = connect_patiently(self.source.dsn)
        self.source.connection.autocommit = True

    def leave(self) -> None:
        """The source's server is gone until it comes back."""
        self.server.kill()

    def come_back(self) -> None:
        """Its server is there again."""
        self.server.start()
        self.reconnect()

    # the replicator

    @property
    def follows(self) -> bool:
        """Whether the service says that rows of the source arrive."""
        return self.deployment.health().state in {ReplicationState.STREAMING, ReplicationState.RESYNCING}

    @property
    def running(self) -> bool:
        return self.host is not None or self.deployment.running

    def start(self, *, apart: bool = False) -> None:
        """Start the replicator of this source, here or in a process of its own."""
        if not apart:
            self.deployment.start()
            return
        self.host = self._replicator(*(["--source", self.name] if len(self.fellows) > 1 else []))

    def start_together(self, *, apart: bool) -> None:
        """Start the replicators of all sources, none of which runs: here, or in one process. One whose source does not
        answer goes on trying."""
        host = self._replicator() if apart else None
        for each in self.fellows:
            each.host = host
            if host is None:
                each.deployment.start(publish=False)

    def _replicator(self, *arguments: str) -> Running:
        self._hosts += 1
        stem = f"replicator-{self.name.replace('/', '-')}-{self._hosts}"
        return self._process("replicate", stem, self._config(), *arguments)

    def _process(self, name: str, stem: str, config: dict[str, object], *arguments: str) -> Running:
        path = self.folder / f"{stem}.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        return start(command(name, "--config", path, *arguments), path.with_suffix(".log"))

    def _config(self) -> dict[str, object]:
        config = config_of_service(self.deployment, free_port())
        if len(self.fellows) > 1:
            config["replication"] = {"connections": [each.connection() for each in self.fellows]}
        if self.stores is not None:
            config["storage"] = connection_to(self.stores.port) | {"schema": self.database}
        return config

    def connection(self) -> dict[str, object]:
        """This source in the service config."""
        settings = self.deployment.settings
        shard = {"shard": settings.shard} if settings.shard else {}
        reached = connection_to(settings.port, settings.database, settings.user)
        return reached | {"slot_name_prefix": settings.slot_prefix, "tag": settings.tag} | shard

    def stop(self) -> None:
        """End the replicator in order. Of sources that shared its process, the others go on here."""
        host, self.host = self.host, None
        if host is not None:
            host.ask_to_end()
            host.wait()
            self._go_on_without(host)
        self.deployment.stop()

    def kill(self) -> None:
        """End it as by `kill -9`; only a process of its own can be. Of sources that shared it, the others go on
        here."""
        host, self.host = self.host, None
        if host is None:
            self.stop()
            return
        family = host.family()
        host.kill()
        wait_gone(family)
        self._go_on_without(host)

    def _go_on_without(self, host: Running) -> None:
        for each in self.fellows:
            if each.host is host:
                each.host = None
                each.deployment.start(publish=False)

    def kill_together(self) -> None:
        """End the replicators of all sources: those in processes as by `kill -9`."""
        hosts = {id(each.host): each.host for each in self.fellows if each.host is not None}
        families = [host.family() for host in hosts.values()]
        for host in hosts.values():
            host.kill()
        for family in families:
            wait_gone(family)
        for each in self.fellows:
            each.host = None
            each.deployment.stop()

    def check_alive(self) -> None:
        """Raises what ended the replicator."""
        self.deployment.raise_failure()
        assert self.host is None or self.host.alive, f"the replicator ended:\n{self.host.output}"

    def close(self) -> None:
        self.stop()
        self.deployment.close()
        if self.server.pid is not None:
            self.reconnect()
            self.source.drop()

    @contextmanager
    def endpoint(self) -> Iterator[str]:
        """Where devices connect to, for as long as the block lasts."""
        port = free_port()
        running = self._process("api", "endpoint", {**self._config(), "port": port})
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            running.ask_to_end()
            running.wait()

    # the source

    def published(self) -> dict[str, Published]:
        """What of each table that is there devices can see."""
        found: dict[str, Published] = {}
        detailed = self.source.connection.info.server_version >= 15_00_00
        every = (
            "(select array_agg(column_name::text) from information_schema.columns"
            " where table_schema = schemaname and table_name = tablename)"
        )
        details = (
            f"coalesce(attnames::text[], {every}), coalesce(rowfilter, 'true')" if detailed else f"{every}, 'true'"
        )
        for name in KINDS:
            rows = self.source.fetch(
                f"select {details} from pg_publication_tables"
                " where pubname = 'headwater' and schemaname = 'public' and tablename = %s",
                name,
            )
            for columns, row_filter in rows:
                found[name] = Published(tuple(columns), row_filter)
        return found

    def truth(self) -> tuple[dict[str, dict[str, Rows]], Versions]:
        """What is published now, and what is known of all rows."""
        state: dict[str, dict[str, Rows]] = {}
        versions: dict[tuple[str, str], tuple[Version, ...]] = {}
        public = self.published()
        there = {
            name
            for (name,) in self.source.fetch("select relname from pg_class where relnamespace = 'public'::regnamespace")
        }
        for name in KINDS.keys() & there:
            published = public.get(name)
            rows: dict[str, Rows] = {}
            for row_id, fields, passes in self.source.fetch(select_rows(KINDS[name], published)):
                whole = completed(KINDS[name], fields)
                versions[name, row_id] = (*versions.get((name, row_id), ()), version_of(KINDS[name], whole))
                if published and passes:
                    rows[row_id] = (*rows.get(row_id, ()), *published.shown(whole))
            if published:
                state[name] = rows
        return state, versions

    def crowded(self) -> Shown:
        """What the query of the computed table gives now."""
        rows = self.source.fetch(f"select row_to_json(q) from ({CROWDED_QUERY}) q")
        return Counter((CROWDED, canonical(row)) for (row,) in rows)

    # quiet

    def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        """With all writers silent: wait until the store has everything, and compares nothing any more."""
        wait_until(self._settled, "the store to settle", seconds, pause=0.1)

    def _settled(self) -> bool:
        self.check_alive()
        position = self.position()
        self.source.execute("select pg_logical_emit_message(false, 'headwater', 'ping')")
        wait_until(lambda: self.stored() >= position, "the store to reach the source", SETTLE_SECONDS, pause=0.05)
        published = published_tables(self.source.connection, ["headwater"])
        named = {"public." + name for name in (*KINDS, LEDGER)}
        with self.deployment.store() as store:
            stored = [table for table in store.tables(self.name) if not table.computed]
        shown = [table for table in published if table.qualified_name in named]
        return known(stored, shown) and not any(table.resync for table in stored)

    def position(self) -> int:
        """Where the source's log ends."""
        return parse_lsn(self.source.fetch("select pg_current_wal_insert_lsn()::text")[0][0])

    def stored(self) -> int:
        """How much of the log is in the store's newest checkpoint; 0 while it does not answer."""
        self.check_alive()
        try:
            checkpoint = self.deployment.reader.newest()
        except (StoreBusyError, StoreUnreachableError):
            return 0
        return 0 if checkpoint is None else checkpoint.checkpoint.lsns.get(self.name, 0)
