"""Deaths of any part, at random moments."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import psutil
import psycopg
from pyspark import SparkContext

from headwater.embedded.postgres import StopMode
from tests.storm.ledger import EVERYTHING, Ledger
from tests.storm.world import World
from tests.storm.writers import Log


class Kills:
    """Ends one part or another. `done` counts them by name."""

    def __init__(self, world: World, chance: random.Random, apart: float, log: Log) -> None:
        self._world = world
        self._chance = chance
        self._apart = apart
        self._log = log
        self.done: Counter[str] = Counter()
        self._all: dict[str, tuple[int, Callable[[Ledger], None]]] = {
            "replicator ended in order": (3, self._restart),
            "replicator killed": (4 if apart else 0, self._kill),
            "Postgres ended in order": (1, lambda _: world.crash(StopMode.FAST)),
            "Postgres crashed": (2, lambda _: world.crash(StopMode.IMMEDIATE)),
            "Postgres cut off": (1, lambda _: world.crash(None)),
            "walsender ended": (2, self._end_walsenders),
            "all sessions of the replicator ended": (2, self._end_sessions),
            "Spark's workers killed": (2, self._kill_workers),
            "Spark killed": (1 if apart else 0, self._kill_jvm),
            "slot dropped": (1, self._drop_slot),
        }

    def one(self, ledger: Ledger) -> None:
        """End something, and start it again if it does not do so by itself."""
        weights = [weight for weight, _ in self._all.values()]
        name = self._chance.choices(list(self._all), weights)[0]
        self._log(f"kill: {name}")
        self._all[name][1](ledger)
        self.done[name] += 1
        self._log(f"kill: {name}: done")

    def _restart(self, _: Ledger) -> None:
        self._world.stop()
        self._world.start(apart=self._chance.random() < self._apart)

    def _kill(self, ledger: Ledger) -> None:
        if self._world.host is None:
            self._world.stop()
            self._world.start(apart=True)
            return
        self._world.kill()
        self._world.start(apart=self._chance.random() < self._apart)

    def _end_walsenders(self, _: Ledger) -> None:
        self._world.source.execute("select pg_terminate_backend(pid) from pg_stat_replication")

    def _end_sessions(self, _: Ledger) -> None:
        self._world.source.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'headwater%'"
        )

    def _kill_workers(self, _: Ledger) -> None:
        self._kill_named("python")

    def _kill_jvm(self, _: Ledger) -> None:
        self._kill_named("java")

    def _kill_named(self, name: str) -> None:
        for process in self._spark():
            try:
                if name in process.name():
                    process.kill()
            except psutil.NoSuchProcess:
                continue

    def _spark(self) -> list[psutil.Process]:
        """Spark's JVM and all below it, of the replicator that runs now."""
        if self._world.host is not None:
            return list(self._world.host.family())
        started = getattr(SparkContext._gateway, "proc", None)
        if started is None or started.poll() is not None:
            return []
        jvm = psutil.Process(started.pid)
        return [jvm, *jvm.children(recursive=True)]

    def _drop_slot(self, ledger: Ledger) -> None:
        ledger.exclude(EVERYTHING)
        self._world.stop()
        slots = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active"
        try:
            self._world.source.execute(slots)
        except psycopg.Error as error:
            self._log(f"the slot stays: {error}")
        self._world.start()
