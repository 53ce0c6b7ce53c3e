"""One life of a storm: new sources and stores, some rounds of everything at once, and after each a quiet moment in
which devices, stores and sources have to agree."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.pipeline.jobs import BulkJobs
from tests.storm.backups import restore, take_backup
from tests.storm.kills import Kills
from tests.storm.ledger import EVERYTHING
from tests.storm.plan import Plan
from tests.storm.service import Service
from tests.storm.setup import SETTLE_SECONDS, StormSetup
from tests.storm.side import Side
from tests.storm.sources import names_of
from tests.support.waiting import wait_until

_WRITER_SECONDS = 180.0
_CALM_SECONDS = 15.0
"""How long rows may be on their way while another source is away, and nothing else happens."""
_TOLD_SECONDS = 90.0
"""Devices are told of a source that has been away for longer: a minute, and until somebody looks."""


@dataclass
class Tally:
    """What happened, for the summary: `done` counts changes of tables by name, `kills` what was ended. `calm` is for
    how many seconds a row was on its way, at most, while another source was away and nothing else happened."""

    rounds: int = 0
    transactions: int = 0
    sights: int = 0
    calm: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: Tally) -> Tally:
        self.rounds += other.rounds
        self.transactions += other.transactions
        self.sights += other.sights
        self.calm = max(self.calm, other.calm)
        self.done += other.done
        self.kills += other.kills
        return self


@contextmanager
def setups_of(
    new_server: Callable[[], EmbeddedPostgres], folder: Path, bulk: BulkJobs, name: str, plan: Plan
) -> Iterator[list[list[StormSetup]]]:
    """The setups that a plan speaks of, for each service those of its sources. One source each: databases of one
    cluster, and stores of their own. Several: each in a cluster of its own."""
    server, stores = new_server(), new_server() if plan.storage == "postgres" else None
    names = [name if plan.services == 1 else f"{name}_{number}" for number in range(plan.services)]
    services = []
    for each in names:
        setups = [
            StormSetup(new_server() if place else server, folder / each, bulk, each, stores, source)
            for place, source in enumerate(names_of(plan.sources))
        ]
        for setup in setups:
            setup.introduce(setups)
        services.append(setups)
    try:
        yield services
    finally:
        for setups in services:
            if len(setups) > 1:
                setups[0].kill_together()
            for setup in setups:
                setup.close()


class Life:
    """Everything that follows from one seed, but for what threads and machines make of it. The log tells that."""

    def __init__(self, services: Sequence[Sequence[StormSetup]], seed: int, plan: Plan, log: Path) -> None:
        self._seed = seed
        self._plan = plan
        self._log_file = log.open("a", encoding="utf-8")
        self._started = time.monotonic()
        self._round = 0
        self._turn = 0
        self._services = [
            Service([Side(setup, self._seed_of(setup), plan, self._log_of(setup)) for setup in setups], plan, self.log)
            for setups in services
        ]
        self._sides = [side for service in self._services for side in service.sides]
        self._chance = random.Random(f"{seed} sources")
        self._kills = Kills(self._sides, random.Random(f"{seed} kills"), plan.apart, self.log)
        self.tally = Tally()
        self.log(str(plan))

    def _seed_of(self, setup: StormSetup) -> str:
        seed = str(self._seed) if self._plan.services == 1 else setup.database
        return seed if self._plan.sources == 1 else f"{seed} {setup.name}"

    def _log_of(self, setup: StormSetup) -> Callable[[str], None]:
        prefix = "" if self._plan.services == 1 else f"{setup.database} "
        prefix += "" if self._plan.sources == 1 else f"{setup.name} "
        return lambda text: self.log(prefix + text)

    def log(self, text: str) -> None:
        self._log_file.write(f"{time.monotonic() - self._started:8.3f} {text}\n")
        self._log_file.flush()

    def close(self) -> None:
        for service in self._services:
            service.close()
        for side in self._sides:
            self.tally.done += side.done
        self.tally.kills += self._kills.done
        self._log_file.close()

    def begin(self) -> None:
        """Lay the tables out and read them for the first time."""
        for service in self._services:
            service.begin()

    def round(self) -> None:
        """Some transactions, changes and kills at once; then quiet. Of several sources, one is restored from a backup
        after the first of three rounds, and one is away after the second. Raises StormFailed."""
        chosen = self._chance.choice(self._sides)
        happens = self._turn % 3 if self._plan.sources > 1 else None
        self._turn += 1
        backup = take_backup(chosen.setup, self._turn) if happens == 0 else None
        self._pass(self._sides)
        if backup is not None:
            self._restore(chosen, backup)
        elif happens == 1 and self._plan.away:
            self._away(chosen)
        self.tally.rounds += 1

    def _pass(self, there: Sequence[Side], away: Side | None = None, *, share: float = 1.0, calm: bool = False) -> None:
        """Writers write, each so much of what the plan says, and unless it is calm, tables change and parts are ended;
        then quiet."""
        self._round += 1
        self.log(f"round {self._round} of seed {self._seed}")
        within = _CALM_SECONDS if calm else SETTLE_SECONDS
        with ExitStack() as services:
            for service in self._services:
                services.enter_context(service.round(self._round, share=share, away=away, within=within))
            if calm:
                wait_until(lambda: all(service.probed for service in self._services), "rows of each source to return")
            else:
                self._meanwhile(there, self._plan.kills if away is None else 0)
        for service in self._services:
            for side in service.sides:
                side.judge()
            service.agree(away)
        for side in there:
            committed = sum(writer.committed for writer in side.writers)
            self.tally += Tally(0, committed, len(side.ledger.sights))

    def _meanwhile(self, there: Sequence[Side], kills: int) -> None:
        """Changes and kills, spread over what the writers do."""
        chance = random.Random(f"{self._seed} {self._round}")
        actions = [side.change for side in there for _ in range(self._plan.changes)]
        actions += [self._kills.one] * kills
        chance.shuffle(actions)
        total = sum(writer.count for side in there for writer in side.writers)
        moments = sorted(chance.randrange(total) for _ in actions)
        for moment, act in zip(moments, actions, strict=True):
            wait_until(
                lambda m=moment: sum(side.tried for side in there) >= m,  # type: ignore[misc]
                "the writers",
                _WRITER_SECONDS,
            )
            act()

    # what happens to one of several sources

    def _restore(self, side: Side, backup: Path) -> None:
        """The source goes back to its backup while nobody writes; what was committed since is gone for good."""
        self.log(f"{side.name} is restored from a backup")
        (service,) = self._services
        self._round += 1
        service.restored.add(side.name)
        with service.round(self._round, share=0.0):
            side.ledger.exclude(EVERYTHING)
            restore(side.setup, backup)
        for each in self._sides:
            if each is not side:
                each.judge()
        service.agree()
        self._kills.done["source restored from a backup"] += 1

    def _away(self, side: Side) -> None:
        """The source is away for some time while the others go on: in calm, under changes of tables, and in a service
        that is killed and started again without it."""
        (service,) = self._services
        assert service.probe is not None
        there = [each for each in self._sides if each is not side]
        service.probe.check_waits(side, there[0])
        self.log(f"{side.name} goes away")
        gone, lasted = time.monotonic(), 0.0
        side.setup.leave()
        for turn in itertools.cycle(("calm", "changes", "service killed")):
            if turn == "service killed":
                self._kills.end_service(service.setup)
            self._pass(there, side, share=0.3, calm=turn == "calm")
            if turn == "calm":
                self._judge_calm(service, there)
                service.probe.check_refused(side.name)
            lasted = time.monotonic() - gone
            if lasted > self._plan.away:
                break
        wait_until(lambda: not side.setup.follows, f"the status to tell of {side.name}", 30.0)
        if lasted > _TOLD_SECONDS:
            service.probe.wait_until_told(side.name, 30.0)
        self.log(f"{side.name} comes back after {lasted:.0f} s")
        side.setup.come_back()
        self._pass(self._sides, share=0.3)
        self._kills.done["source away"] += 1

    def _judge_calm(self, service: Service, there: Sequence[Side]) -> None:
        """Rows of the others were not late."""
        assert service.probe is not None
        for side in there:
            waits = service.probe.waits[side.name]
            late = [f"{wait:.1f} s" for wait in waits if wait > _CALM_SECONDS]
            side.fail_on(late, "while another source was away, rows came late")
            self.tally.calm = max(self.tally.calm, *waits)
