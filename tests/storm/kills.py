"""Deaths of any part, at random moments."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import psutil
import psycopg
from pyspark import SparkContext

from headwater.embedded.postgres import EmbeddedPostgres, StopMode
from tests.storm.ledger import EVERYTHING
from tests.storm.setup import StormSetup
from tests.storm.side import Side
from tests.storm.writers import Log


class Kills:
    """Ends one part or another of one of the services. `done` counts them by name."""

    def __init__(self, sides: Sequence[Side], chance: random.Random, apart: float, log: Log) -> None:
        self._sides = sides
        self._side = sides[0]
        self._chance = chance
        self._apart = apart
        self._log = log
        self.done: Counter[str] = Counter()
        stores = self._setup.stores
        self._all: dict[str, tuple[int, Callable[[], None]]] = {
            "replicator ended in order": (3, self._restart),
            "replicator killed": (4 if apart else 0, self._kill),
            "tables changed while the replicator is stopped": (3, self._change_unseen),
            "Postgres ended in order": (1, lambda: self._crash(self._setup.server, StopMode.FAST)),
            "Postgres crashed": (2, lambda: self._crash(self._setup.server, StopMode.IMMEDIATE)),
            "Postgres cut off": (1, lambda: self._crash(self._setup.server, None)),
            "the store's Postgres ended in order": (1 if stores else 0, lambda: self._crash(stores, StopMode.FAST)),
            "the store's Postgres crashed": (2 if stores else 0, lambda: self._crash(stores, StopMode.IMMEDIATE)),
            "walsender ended": (2, self._end_walsenders),
            "all sessions of the replicator ended": (2, self._end_sessions),
            "Spark's workers killed": (2, lambda: self._kill_named("python")),
            "Spark killed": (1 if apart else 0, lambda: self._kill_named("java")),
            "slot dropped": (1, self._drop_slot),
        }
        if len(self._setup.fellows) > 1:
            self._all["service killed"] = (4, lambda: self._end_service(self._setup))

    def one(self) -> None:
        """End something, and start it again if it does not do so by itself."""
        self._side = self._chance.choice(self._sides)
        weights = [weight for weight, _ in self._all.values()]
        name = self._chance.choices(list(self._all), weights)[0]
        self._log(f"kill: {name} ({self._setup.database} {self._setup.name})")
        self._all[name][1]()
        self.done[name] += 1
        self._log(f"kill: {name}: done")

    def end_service(self, setup: StormSetup) -> None:
        """End the replicators of all sources of a service at once, and start them again."""
        self._log("service killed")
        self._end_service(setup)
        self.done["service killed"] += 1

    def _end_service(self, setup: StormSetup) -> None:
        setup.kill_together()
        setup.start_together(apart=self._chance.random() < 2 * self._apart)

    @property
    def _setup(self) -> StormSetup:
        return self._side.setup

    def _crash(self, server: EmbeddedPostgres | None, mode: StopMode | None) -> None:
        """End a server in some way, None as by a power cut, and start it again."""
        assert server is not None
        if mode is None:
            server.kill()
            server.start()
        else:
            server.restart(mode)
        for side in self._sides:
            if side.setup.server is server:
                side.setup.reconnect()

    def _change_unseen(self) -> None:
        self._chance.choice([self._setup.stop, self._setup.kill])()
        for _ in range(self._chance.randint(1, 3)):
            self._side.change()
        self._setup.start(apart=self._chance.random() < self._apart)

    def _restart(self) -> None:
        self._setup.stop()
        self._setup.start(apart=self._chance.random() < self._apart)

    def _kill(self) -> None:
        is_apart = self._setup.host is not None
        self._setup.kill()
        self._setup.start(apart=not is_apart or self._chance.random() < self._apart)

    def _end_walsenders(self) -> None:
        self._setup.source.execute("select pg_terminate_backend(pid) from pg_stat_replication")

    def _end_sessions(self) -> None:
        self._setup.source.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'headwater%'"
        )

    def _kill_named(self, name: str) -> None:
        for process in self._spark():
            try:
                if name in process.name():
                    process.kill()
            except psutil.NoSuchProcess:
                continue

    def _spark(self) -> list[psutil.Process]:
        """Spark's JVM and all below it, of the replicator that runs now."""
        if self._setup.host is not None:
            return list(self._setup.host.family())
        started = getattr(SparkContext._gateway, "proc", None)
        if started is None or started.poll() is not None:
            return []
        jvm = psutil.Process(started.pid)
        return [jvm, *jvm.children(recursive=True)]

    def _drop_slot(self) -> None:
        self._side.ledger.exclude(EVERYTHING)
        self._setup.stop()
        slots = (
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where not active and database = current_database()"
        )
        try:
            self._setup.source.execute(slots)
        except psycopg.Error as error:
            self._log(f"the slot stays: {error}")
        self._setup.start()
