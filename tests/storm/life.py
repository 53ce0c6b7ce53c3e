"""One life of a storm: a new source and store, some rounds of everything at once, and after each a quiet moment in
which devices, store and source have to agree."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.storm.changes import Changes
from tests.storm.kills import Kills
from tests.storm.ledger import Ledger, differences
from tests.storm.tables import KINDS, LEDGER, USERS, shown_to
from tests.storm.watcher import Device, Watcher
from tests.storm.world import World
from tests.storm.writers import Writer
from tests.support.fix_headwater import wait_until
from tests.support.store_checker import problems

PACE = 0.015
_WRITER_SECONDS = 180.0


@dataclass
class Tally:
    """What happened, for the summary."""

    rounds: int = 0
    transactions: int = 0
    sights: int = 0
    done: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: Tally) -> Tally:
        self.rounds += other.rounds
        self.transactions += other.transactions
        self.sights += other.sights
        self.done += other.done
        return self


class StormFailed(AssertionError):
    """What a device saw, or the store has, is not what the source had."""


@dataclass(frozen=True)
class Plan:
    """How rough it gets: writers, transactions each, changes of tables and kills in a round."""

    writers: int = 2
    transactions: int = 60
    changes: int = 0
    kills: int = 0
    apart: float = 0.0


ROUGH = Plan(writers=3, transactions=80, changes=3, kills=2, apart=0.25)


class Life:
    """Everything that follows from one seed, but for what threads and machines make of it. The log tells that."""

    def __init__(self, world: World, seed: int, plan: Plan, log: Path) -> None:
        self._world = world
        self._seed = seed
        self._plan = plan
        self._log_file = log.open("a", encoding="utf-8")
        self._started = time.monotonic()
        self._round = 0
        self.tally = Tally()
        self._changes = Changes(world.source.dsn, random.Random(f"{seed} changes"), self.log)
        self._kills = Kills(world, random.Random(f"{seed} kills"), plan.apart, self.log)

    def log(self, text: str) -> None:
        self._log_file.write(f"{time.monotonic() - self._started:8.3f} {text}\n")
        self._log_file.flush()

    def close(self) -> None:
        self.tally.done = self._changes.done + self._kills.done
        self._log_file.close()

    def begin(self) -> None:
        """Lay the tables out and read them for the first time."""
        self._world.lay_out()
        self._world.start()
        self._device = Device(self._world.deployment.reader)
        self._base = self._world.truth()

    def round(self) -> None:
        """Some transactions, changes and kills at once; then quiet. Raises StormFailed."""
        self._round += 1
        self.log(f"round {self._round} of seed {self._seed}")
        ledger = Ledger(f"{self._round}.")
        with self._watching(ledger):
            writers = self._writers(ledger)
            for writer in writers:
                writer.start()
            self._meanwhile(writers, ledger)
            for writer in writers:
                writer.join(_WRITER_SECONDS)
                if writer.failure is not None:
                    raise writer.failure
                assert not writer.is_alive(), f"{writer.name} hangs"
            self.log("quiet")
            self._world.settle()
            self.log("settled")
        self._judge(ledger)
        self._agree()
        self.tally += Tally(1, sum(writer.committed for writer in writers), len(ledger.sights), Counter())
        self.tally.done = self._changes.done + self._kills.done
        self._world.source.execute(f"delete from {LEDGER}")

    def _meanwhile(self, writers: list[Writer], ledger: Ledger) -> None:
        """Changes and kills, spread over what the writers do."""
        chance = random.Random(f"{self._seed} {self._round}")
        actions = [self._changes.make] * self._plan.changes + [self._kills.one] * self._plan.kills
        chance.shuffle(actions)
        total = self._plan.writers * self._plan.transactions
        moments = sorted(chance.randrange(total) for _ in actions)
        for moment, act in zip(moments, actions, strict=True):
            wait_until(lambda m=moment: sum(w.tried for w in writers) >= m, "the writers", _WRITER_SECONDS)  # type: ignore[misc]
            act(ledger)

    def _writers(self, ledger: Ledger) -> list[Writer]:
        published = self._world.published()
        return [
            Writer(
                f"{self._round}.{number}",
                f"{self._seed} {self._round} {number}",
                self._world.source.dsn,
                self._plan.transactions,
                ledger,
                published,
                self.log,
                PACE,
            )
            for number in range(self._plan.writers)
        ]

    @contextmanager
    def _watching(self, ledger: Ledger) -> Iterator[None]:
        watcher = Watcher(self._device, ledger)
        watcher.start()
        try:
            yield
        finally:
            watcher.end()
        if watcher.failure is not None:
            raise watcher.failure

    def _judge(self, ledger: Ledger) -> None:
        self.log(f"{len(ledger.sights)} checkpoints, {len(ledger.transactions)} transactions")
        self._fail_on(ledger.judge(self._base), "a checkpoint is not a state that the source had")

    def _agree(self) -> None:
        """Devices, those that stayed and new ones, show what the source has, and the store is whole."""
        self._base = self._world.truth()
        for device, what in ((self._device, "the device"), (Device(self._world.deployment.reader), "a new device")):
            shown = device.complete()
            assert shown is not None
            for user in USERS:
                wanted = shown_to(user, self._base, self._base)
                seen = {row: count for row, count in shown[user].items() if row[0] in KINDS}
                self._fail_on(differences(wanted, seen), f"{what} of {user} does not show what the source has")
        self._fail_on(problems(self._world.deployment.directory), "the store contradicts itself")

    def _fail_on(self, found: list[str], what: str) -> None:
        if found:
            text = "\n  ".join([f"seed {self._seed}, round {self._round}: {what}", *found])
            self.log(text)
            raise StormFailed(text)
