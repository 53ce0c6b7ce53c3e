"""One life of a storm: new sources and stores, some rounds of everything at once, and after each a quiet moment in
which devices, stores and sources have to agree."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.pipeline.jobs import BulkJobs
from tests.storm.kills import Kills
from tests.storm.plan import Plan
from tests.storm.setup import StormSetup
from tests.storm.side import Side
from tests.support.waiting import wait_until

_WRITER_SECONDS = 180.0


@dataclass
class Tally:
    """What happened, for the summary: `done` counts changes of tables by name, `kills` what was ended."""

    rounds: int = 0
    transactions: int = 0
    sights: int = 0
    done: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: Tally) -> Tally:
        self.rounds += other.rounds
        self.transactions += other.transactions
        self.sights += other.sights
        self.done += other.done
        self.kills += other.kills
        return self


@contextmanager
def setups_of(
    new_server: Callable[[], EmbeddedPostgres], folder: Path, bulk: BulkJobs, name: str, plan: Plan
) -> Iterator[list[StormSetup]]:
    """The setups that a plan speaks of: databases of one cluster, and stores of their own."""
    server, stores = new_server(), new_server() if plan.storage == "postgres" else None
    names = [name if plan.services == 1 else f"{name}_{number}" for number in range(plan.services)]
    setups = [StormSetup(server, folder / each, bulk, each, stores) for each in names]
    try:
        yield setups
    finally:
        for setup in setups:
            setup.close()


class Life:
    """Everything that follows from one seed, but for what threads and machines make of it. The log tells that."""

    def __init__(self, setups: Sequence[StormSetup], seed: int, plan: Plan, log: Path) -> None:
        self._seed = seed
        self._plan = plan
        self._log_file = log.open("a", encoding="utf-8")
        self._started = time.monotonic()
        self._round = 0
        self._sides = [Side(setup, self._seed_of(setup), plan, self._log_of(setup)) for setup in setups]
        self._kills = Kills(self._sides, random.Random(f"{seed} kills"), plan.apart, self.log)
        self.tally = Tally()
        self.log(str(plan))

    def _seed_of(self, setup: StormSetup) -> str:
        return str(self._seed) if self._plan.services == 1 else setup.database

    def _log_of(self, setup: StormSetup) -> Callable[[str], None]:
        prefix = "" if self._plan.services == 1 else f"{setup.database} "
        return lambda text: self.log(prefix + text)

    def log(self, text: str) -> None:
        self._log_file.write(f"{time.monotonic() - self._started:8.3f} {text}\n")
        self._log_file.flush()

    def close(self) -> None:
        for side in self._sides:
            side.close()
            self.tally.done += side.done
        self.tally.kills += self._kills.done
        self._log_file.close()

    def begin(self) -> None:
        """Lay the tables out and read them for the first time."""
        for side in self._sides:
            side.begin()

    def round(self) -> None:
        """Some transactions, changes and kills at once; then quiet. Raises StormFailed."""
        self._round += 1
        self.log(f"round {self._round} of seed {self._seed}")
        with ExitStack() as sides:
            for side in self._sides:
                sides.enter_context(side.round(self._round))
            self._meanwhile()
        for side in self._sides:
            side.judge()
            side.agree()
            committed = sum(writer.committed for writer in side.writers)
            self.tally += Tally(0, committed, len(side.ledger.sights))
        self.tally.rounds += 1

    def _meanwhile(self) -> None:
        """Changes and kills, spread over what the writers do."""
        chance = random.Random(f"{self._seed} {self._round}")
        actions = [side.change for side in self._sides for _ in range(self._plan.changes)]
        actions += [self._kills.one] * self._plan.kills
        chance.shuffle(actions)
        total = sum(writer.count for side in self._sides for writer in side.writers)
        moments = sorted(chance.randrange(total) for _ in actions)
        for moment, act in zip(moments, actions, strict=True):
            wait_until(lambda m=moment: self._tried() >= m, "the writers", _WRITER_SECONDS)  # type: ignore[misc]
            act()

    def _tried(self) -> int:
        return sum(side.tried for side in self._sides)
